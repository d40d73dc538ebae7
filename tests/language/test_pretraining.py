"""Masked tokens: which are chosen, how they are replaced, and that the network learns."""

import keras
import numpy as np
import pytest
from harness import array

from keras_vitx import language

TEXTS = [
    "the cat sat on the mat , and the dog on the log",
    "a token of a text is a piece of a word",
    "the mat is under the cat , the log under the dog",
]


@pytest.fixture(scope="module")
def tokenizer():
    return language.train_tokenizer(TEXTS * 5, vocabulary=80)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS[:2] * 3) + "\n\n" + "\n".join(TEXTS * 30))
    return tmp_path / "text.txt"


@pytest.mark.backend_free
def test_rows_hold_whole_lines_of_one_document(tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat\nthe dog\n\nthe mat\n" + "log " * 20)
    rows = language.read_text(path, tokenizer, 10)
    texts = [tokenizer.decode(row) for row in rows]
    assert texts == ["the cat the dog", "the mat", *["log " * 7 + "log"] * 2, "log log log log"]
    start, end = map(tokenizer.token_to_id, ("[CLS]", "[SEP]"))
    assert all(row[0] == start and (row == end).sum() == 1 for row in rows)
    path.write_text("\n \n")
    with pytest.raises(ValueError, match=r"must have text.*text\.txt"):
        language.read_text(path, tokenizer, 10)
    with pytest.raises(ValueError, match=r"at least 3.*length=2"):  # There it would never end.
        language.read_text(path, tokenizer, 2)


@pytest.mark.backend_free
def test_masking_is_80_10_10(tokenizer):
    ids = np.random.default_rng(0).integers(5, 80, (4000, 40)).astype("int32")
    ids[:, 0], ids[:, -1] = map(tokenizer.token_to_id, ("[CLS]", "[SEP]"))
    ids[::2, 20], ids[::2, 21:] = ids[0, -1], tokenizer.token_to_id("[PAD]")
    data = language.MaskedTexts(ids, tokenizer, 4000)
    inputs, labels, weights = data[0]
    original = ids[data.order]
    np.testing.assert_array_equal(np.take_along_axis(original, inputs["positions"], 1), labels)
    chosen = weights > 0
    # 15 % of 38 tokens, and of 19: 6 and 3.
    assert set(chosen.sum(1)) == {3, 6}
    assert all(len(set(row)) == len(row) for row in inputs["positions"])
    assert labels[chosen].min() >= 5
    seen = np.take_along_axis(inputs["ids"], inputs["positions"], 1)[chosen]
    hidden = (seen == tokenizer.token_to_id("[MASK]")).mean()
    kept = (seen == labels[chosen]).mean()
    assert abs(hidden - 0.8) < 0.015 and abs(kept - 0.1) < 0.015
    others = np.ones(ids.shape, bool)
    rows, places = np.nonzero(chosen)
    others[rows, inputs["positions"][rows, places]] = False
    np.testing.assert_array_equal(inputs["ids"][others], original[others])
    np.testing.assert_array_equal(inputs["mask"], original != tokenizer.token_to_id("[PAD]"))
    # Again the same; other masks and another order in the next epoch.
    np.testing.assert_array_equal(data[0][0]["ids"], inputs["ids"])
    data.on_epoch_end()
    assert (data[0][0]["ids"] != inputs["ids"]).any()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"share": 0.0}, r"`share`.*share=0.0"), ({"batch_size": 9}, r"`batch_size`.*9, 3 rows")],
)
def test_bad_arguments(tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        language.MaskedTexts(np.zeros((3, 8), "int32"), tokenizer, **{"batch_size": 2, **arguments})


def test_pretraining_learns(tokenizer, file):
    keras.utils.set_random_seed(0)
    network = language.BERT(16, 1, 4, embedding_dim=8, vocabulary=80, positions=32, dropout=0.0)
    before = array(network.get_layer("embedding").tokens.value)
    history = language.pretrain(
        network,
        tokenizer,
        file,
        32,
        8,
        batch_size=16,
        learning_rate=0.02,
        validation=file,
        verbose=0,
    ).history
    assert history["val_accuracy"][-1] > history["val_accuracy"][0]
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    # Shared, not copied.
    assert np.abs(array(network.get_layer("embedding").tokens.value) - before).max() > 0.01
    with pytest.raises(ValueError, match=r"at most 32 tokens"):
        language.pretrain(network, tokenizer, file, 33)


@pytest.mark.backend_free
def test_learning_rate():
    rate = language.WarmupLinear(2.0, 100, 0.1)
    steps = [0, 4, 9, 55, 100]
    np.testing.assert_allclose([float(array(rate(s))) for s in steps], [0.2, 1, 2, 1, 0], rtol=1e-5)
