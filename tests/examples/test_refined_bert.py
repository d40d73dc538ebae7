"""examples/refined_bert.py: BERT against `transformers`, its masks, its tasks, and a whole run."""

import importlib.util
import sys
import types

import keras
import numpy as np
import pytest
from harness import ROOT, array, close

from keras_vitx.layers import Attention, RefinedAttention

pytestmark = pytest.mark.backend_free
spec = importlib.util.spec_from_file_location("refined_bert", ROOT / "examples/refined_bert.py")
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)

RANDOM = np.random.default_rng(0)
MASK = (np.arange(12) < np.array([[12], [7], [3]])).astype("int32")
SEGMENTS = RANDOM.integers(0, 2, (3, 12)).astype("int32")
TEXT = "the cat sat on the mat\na dog ran to the cat\n\nthe mat was red and the dog was not\n" * 20


@pytest.fixture
def tokenizer():
    return program.train_tokenizer(TEXT.splitlines(), 60)


def tiny(attention=Attention, **changes):
    sizes = {"dim": 16, "depth": 2, "num_heads": 4, "embedding_dim": 8, "positions": 20}
    return program.bert(attention, **{"vocabulary": 60, **sizes, **changes})


@pytest.fixture(scope="module")
def peer():
    """ELECTRA's small network in `transformers`: the same architecture, random weights."""
    torch = pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        # Its import fails where torchvision and PyTorch do not fit; no text needs it.
        patch.setitem(sys.modules, "torchvision", None)
        transformers = pytest.importorskip("transformers")
        from transformers.models.electra import modeling_electra  # noqa: F401 - lazy
    torch.manual_seed(0)
    config = transformers.ElectraConfig()
    electra = transformers.ElectraForSequenceClassification(config).eval()
    generator = transformers.ElectraForMaskedLM(config).eval()
    generator.electra = electra.electra
    generator.tie_weights()
    with torch.no_grad():
        for name, value in [*electra.named_parameters(), *generator.named_parameters()]:
            norm = name.endswith("LayerNorm.weight")
            value.copy_(0.05 * torch.randn(value.shape) + (1 if norm else 0))
    state = {**generator.state_dict(), **electra.state_dict()}
    return electra, generator, {name: value.numpy() for name, value in state.items()}


def copied(state, layer, *names):
    """Give a layer the weights of `transformers`, several side by side."""
    parts = ([state[f"{name}.{part}"].T for name in names] for part in ("weight", "bias"))
    layer.set_weights([np.concatenate(part, axis=-1) for part in parts])


def load(network, state):
    """Copy the weights of ELECTRA to a network of `bert`."""
    of, prefix = network.get_layer, "electra.embeddings"
    for name, layer in (("word", "token"), ("position", "position"), ("token_type", "segment")):
        of(layer).set_weights([state[f"{prefix}.{name}_embeddings.weight"]])
    copied(state, of("norm"), f"{prefix}.LayerNorm")
    copied(state, of("proj"), f"{prefix}_project")
    for i in range(12):
        prefix = f"electra.encoder.layer.{i}"
        own = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        copied(state, of(f"attn_{i}").qkv, *own)
        copied(state, of(f"attn_{i}").proj, f"{prefix}.attention.output.dense")
        copied(state, of(f"norm1_{i}"), f"{prefix}.attention.output.LayerNorm")
        copied(state, of(f"mlp_{i}").fc1, f"{prefix}.intermediate.dense")
        copied(state, of(f"mlp_{i}").fc2, f"{prefix}.output.dense")
        copied(state, of(f"norm2_{i}"), f"{prefix}.output.LayerNorm")


def test_parity_with_transformers(peer):
    import torch

    electra, generator, state = peer
    network, refined = (
        program.bert(attention, 30522, **program.SMALL)
        for attention in (Attention, RefinedAttention)
    )
    # 14 M in Refiner, Table 6, with and without the refiner.
    assert network.count_params() == 13_483_008
    assert refined.count_params() - 13_483_008 == 12 * (4 * 12 + 12 * 9 + 12 * 4)
    load(network, state)
    inputs = [RANDOM.integers(0, 30522, (3, 12)).astype("int32"), SEGMENTS, MASK]
    names = "input_ids", "token_type_ids", "attention_mask"
    given = {name: torch.tensor(part).long() for name, part in zip(names, inputs, strict=True)}
    with torch.no_grad():
        tokens = electra.electra(**given).last_hidden_state.numpy()
        classes = electra(**given).logits.numpy()
        masked = generator(**given).logits.numpy() - state["generator_lm_head.bias"]
    real = MASK.astype(bool)
    close(array(network(inputs))[real], tokens[real], 1e-5, "tokens")

    head = program.classifier(network, 2)
    copied(state, head.get_layer("pool"), "classifier.dense")
    copied(state, head.get_layer("logits"), "classifier.out_proj")
    close(array(head(inputs)), classes, 1e-5, "classes")

    model = program.masked_language_model(network)
    copied(state, model.get_layer("transform"), "generator_predictions.dense")
    copied(state, model.get_layer("masked_norm"), "generator_predictions.LayerNorm")
    positions = np.broadcast_to(np.arange(12, dtype="int32"), (3, 12))
    close(array(model([*inputs, positions]))[real], masked[real], 1e-5, "masked tokens")


@pytest.mark.parametrize("name, outputs", [("stsb", 1), ("mnli", 3)])
def test_tasks_of_glue_are_learned(name, outputs, tokenizer, monkeypatch):
    """From the rows that tensorflow-datasets gives."""
    words = ["the cat", "a dog", "red mat"]

    def rows(dataset, split):
        assert dataset == f"glue/{name}"
        assert split in ("train", "validation_matched" if name == "mnli" else "validation")
        for label in list(range(max(2, outputs))) * 8:
            texts = {column: words[label].encode() for column in program.GLUE[name]}
            yield {"label": label, **texts}

    fake = types.SimpleNamespace(load=rows, as_numpy=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
    monkeypatch.setattr(program, "adamw", lambda peak, steps: keras.optimizers.Adam(5e-3))
    task = program.glue(name)
    (texts, labels), unseen = task[2:]
    assert task[0] == outputs and len(texts) == len(program.GLUE[name])
    assert [words[label] for label in labels] == texts[-1] == unseen[0][-1]
    score = program.finetune(tiny(depth=1, dropout=0.0), tokenizer, task, 8, 0, 30, 8)
    assert score > (0.5 if name == "mnli" else 0.9)


def test_a_run_prints_a_row_for_both_attentions(capsys, monkeypatch):
    sizes = {"dim": 16, "depth": 1, "num_heads": 2, "embedding_dim": 8}
    monkeypatch.setattr(program, "MINI", sizes)
    monkeypatch.setattr(program, "LABELED", (16, 8))
    words = "--libraries keras_vitx rich --seeds 1 --epochs 1 --length 16 --vocabulary 500"
    program.main(words.split())
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if "seed 0" in line]
    assert [row[1].strip() for row in rows] == ["plain, seed 0", "refined, seed 0"]
    plain, refined = (int(row[2].replace(",", "")) for row in rows)
    assert plain < refined
    assert all(0 < float(row[3]) < 7 and 0 <= float(row[5]) <= 100 for row in rows)
