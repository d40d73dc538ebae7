"""GLUE's files and metrics, tokens, and fine-tuning."""

import keras
import numpy as np
import pytest

from keras_vitx import language
from keras_vitx.language import glue

LAYOUTS = {
    "cola": (None, ["gj04\t1\t\tHe reads.", "gj04\t0\t*\tReads he."], [1, 0]),
    "sst2": ("sentence\tlabel", ['a "fine film\t1', "dull\t0"], [1, 0]),
    "mrpc": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        ["1\t7\t8\tHe left.\tHe went.", "0\t7\t8\tA\tB"],
        [1, 0],
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        ["0\t1\t2\tWhy?\tHow?\t0", "1\tbroken", "1\t1\t2\tWhy?\tWhy so?\t1"],
        [0, 1],
    ),
    "stsb": (
        "index\tgenre\tsentence1\tsentence2\tscore",
        ["0\tx\tA plane.\tAn air plane.\t5.000", "1\tx\tA\tB\t0.25"],
        [5.0, 0.25],
    ),
    "mnli": (
        "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label",
        ["0\t1\tA\tB\tneutral\tcontradiction", "1\t2\tC\tD\tneutral\tneutral"],
        [2, 1],
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel",
        ["0\tWho?\tHe.\tentailment", "1\tWho?\tHow.\tnot_entailment"],
        [0, 1],
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel",
        ["0\tA\tB\tnot_entailment", "1\tC\tD\tentailment"],
        [1, 0],
    ),
}


def write(path, header, lines):
    path.write_text("\n".join([*([header] if header else []), *lines]) + "\n")
    return path


@pytest.mark.backend_free
def test_every_task_has_a_layout():
    assert set(LAYOUTS) == set(glue.TASKS)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", LAYOUTS)
def test_files(name, tmp_path, caplog):
    header, lines, labels = LAYOUTS[name]
    dev = "dev_matched" if name == "mnli" else "dev"
    write(tmp_path / "train.tsv", header, lines)
    write(tmp_path / f"{dev}.tsv", header, lines[:1])
    train, validation = language.read_folder(name, tmp_path)
    np.testing.assert_array_equal(train.labels, np.array(labels, train.labels.dtype))
    assert len(validation.labels) == len(validation.texts) == 1
    fields = [line.split("\t") for line in lines]
    # Quotes are kept as they are.
    assert train.texts[0] in fields[0]
    assert (train.pairs is None) == (name in ("cola", "sst2"))
    assert train.pairs is None or train.pairs[-1] in fields[-1]
    assert ("left out 1 lines" in caplog.text) == (name == "qqp")


@pytest.mark.backend_free
def test_rows_of_tensorflow_datasets():
    rows = [
        {"premise": b"A", "hypothesis": "B", "label": 2, "idx": 0},
        {"premise": b"C", "hypothesis": "D", "label": 0, "idx": 1},
    ]
    found = glue.from_rows("mnli", rows)
    assert (found.texts, found.pairs, list(found.labels)) == (["A", "C"], ["B", "D"], [2, 0])
    with pytest.raises(ValueError, match=r"from 0 to 2, for 3 classes. Received: 3 in row 1"):
        glue.from_rows("mnli", [rows[0], {**rows[1], "label": 3}])


@pytest.mark.backend_free
def test_metrics():
    labels = np.array([0, 0, 1, 1])
    outputs = np.array([[2, 1], [0, 1], [0, 1], [0, 1.0]])
    assert glue.accuracy(labels, outputs) == 0.75
    # (TP TN - FP FN) / sqrt of the product of the four sums.
    assert glue.matthews(labels, outputs) == pytest.approx((2 * 1 - 0) / np.sqrt(3 * 2 * 2 * 1))
    values = np.array([[0.1], [0.4], [0.3], [9.0]])
    assert glue.spearman(np.array([1, 2, 3, 4.0]), values) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert glue.spearman(np.array([1, 2.0]), np.ones((2, 1))) == 0


@pytest.mark.backend_free
def test_bad_tasks_and_files(tmp_path):
    for name in ("wnli", "squad"):
        with pytest.raises(ValueError, match=rf"one of GLUE's. Received: '{name}'.*(mean|Known)"):
            language.read_folder(name, tmp_path)
    path = write(tmp_path / "a.tsv", "index\tsentence1\tlabel", ["0\tA\tentailment"])
    with pytest.raises(ValueError, match=r"columns.*sentence2.*a\.tsv"):
        language.read_tsv("rte", path)
    path = write(tmp_path / "b.tsv", "sentence\tlabel", ["fine\t1", "dull\t2"])
    with pytest.raises(ValueError, match=r"one of \('0', '1'\). Received: '2' in .*b\.tsv, line 3"):
        language.read_tsv("SST-2", path)
    with pytest.raises(ValueError, match=r"lines of at least 2 columns"):
        language.read_tsv("sst2", write(tmp_path / "c.tsv", "sentence\tlabel", ["fine"]))


@pytest.mark.backend_free
def test_tokens(tmp_path):
    tokenizer = language.train_tokenizer(["reading the readable read"] * 9, 60)
    tokenizer.save(str(tmp_path / "tokens.json"))
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    expected = language.encode(tokenizer, ["Read the", "é"], ["reading", "the the the"], 7)
    special = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[PAD]")]
    first = expected["ids"][0]
    assert [first[0], first[3], first[-1]] == special
    np.testing.assert_array_equal(expected["segments"][0], [0, 0, 0, 0, 1, 1, 0])
    np.testing.assert_array_equal(expected["mask"][0], [1, 1, 1, 1, 1, 1, 0])
    for file in ("tokens.json", "vocab.txt"):
        loaded = language.load_tokenizer(tmp_path / file)
        found = language.encode(loaded, ["Read the", "é"], ["reading", "the the the"], 7)
        np.testing.assert_array_equal(found["ids"], expected["ids"])
    with pytest.raises(ValueError, match=r"length=4 tokens. Received: 6 tokens in text 1"):
        language.encode(tokenizer, ["the", "the read the read"], length=4, truncate=False)
    with pytest.raises(ValueError, match=r"`length` must be at least 3.*length=2"):
        language.encode(tokenizer, ["the"], length=2)
    with pytest.raises(ValueError, match=r"`pairs`.*1 pairs, 2 texts"):
        language.encode(tokenizer, ["the", "read"], ["the"])
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nthe")
    with pytest.raises(ValueError, match=r"vocab\.txt must have.*Absent: \['\[CLS\]'"):
        language.load_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "tokens.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokens\.json is not a tokenizer file"):
        language.load_tokenizer(tmp_path / "tokens.json")


@pytest.mark.parametrize("name", ("sst2", "stsb"))
def test_fine_tuning_learns(name):
    """Texts with the word "good" are those of class 1, or of the value 5."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    words = ["the", "film", "is", "of", "a", "kind", "one", "sees", "on", "rainy", "days"]
    labels = random.integers(0, 2, 96)
    texts = [" ".join([*random.choice(words, 6), ("bad", "good")[label]]) for label in labels]
    pairs = None if name == "sst2" else texts[::-1]
    values = labels if name == "sst2" else 5 * labels.astype("float32")
    examples = language.Examples(texts, pairs, values)
    tokenizer = language.train_tokenizer(texts, 60)
    network = language.BERT(16, 1, 4, embedding_dim=8, vocabulary=60, positions=20, dropout=0.0)
    tuned = language.finetune(
        network, tokenizer, name, examples, examples, 20, 12, 16, 0.01, dropout=0.0, verbose=0
    )
    assert tuned.score > 0.6
    assert tuned.score == language.score(tuned.model, tokenizer, name, examples, 20)
    if name == "sst2":
        wrong = language.Examples(texts, None, labels + 1)
        with pytest.raises(ValueError, match=r"from 0 to 1, for 2 classes. Received: 2 in row"):
            language.finetune(network, tokenizer, name, wrong, examples, 20)
        with pytest.raises(ValueError, match=r"at most 20 tokens"):
            language.finetune(network, tokenizer, name, examples, examples, 21)
        for wrong, said in (
            (language.Examples(texts, texts, labels), r"must have 1 texts each. Received: 2"),
            (language.Examples(texts[1:], None, labels), r"95 texts, 96 labels"),
        ):
            with pytest.raises(ValueError, match=said):
                language.score(tuned.model, tokenizer, name, wrong, 20)
        with pytest.raises(ValueError, match=r"must be a model of `language.BERT`.*'mine'"):
            other = keras.Sequential([keras.Input((4,))], name="mine")
            language.finetune(other, tokenizer, name, examples, examples, 20)
