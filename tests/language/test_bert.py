"""BERT against the implementation of `transformers`, and with other attentions."""

import sys

import keras
import numpy as np
import pytest
from harness import array, close, gradients
from keras import ops

from keras_vitx import language
from keras_vitx.language.network import check_batch
from keras_vitx.layers import Attention, PositionalAttention, RefinedAttention, SharedAttention

RANDOM = np.random.default_rng(0)
MASK = (np.arange(12) < np.array([[12], [7], [3]])).astype("int32")
BATCH = {
    "ids": RANDOM.integers(0, 50, (3, 12)).astype("int32"),
    "segments": RANDOM.integers(0, 2, (3, 12)).astype("int32"),
    "mask": MASK,
}


def tiny(**arguments):
    sizes = {"dim": 16, "depth": 2, "num_heads": 4, "embedding_dim": 8, "vocabulary": 50}
    return language.BERT(**{**sizes, "positions": 20, **arguments})


def test_parameters_of_bert_small():
    """14 M in Refiner, Table 6, with and without the refiner."""
    plain = language.BERT_Small()
    assert plain.count_params() == 13_483_008
    refined = language.BERT_Small(attention=lambda index: RefinedAttention(4))
    assert refined.count_params() - plain.count_params() == 12 * (4 * 12 + 12 * 9 + 12 * 4)


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
    values = [
        np.concatenate([state[f"{name}.{part}"].T for name in names], axis=-1)
        for part in ("weight", "bias")
    ]
    layer.set_weights(values)


def load(network, state):
    """Copy the weights of ELECTRA to a network of `BERT`."""
    embedding, prefix = network.get_layer("embedding"), "electra.embeddings"
    for name, variable in (
        ("word", embedding.tokens),
        ("position", embedding.places),
        ("token_type", embedding.kinds),
    ):
        variable.assign(state[f"{prefix}.{name}_embeddings.weight"])
    copied(state, embedding.norm, f"{prefix}.LayerNorm")
    copied(state, embedding.proj, f"{prefix}_project")
    for index in range(12):
        block, prefix = network.get_layer(f"blocks_{index}"), f"electra.encoder.layer.{index}"
        own = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        copied(state, block.attention.qkv, *own)
        copied(state, block.attention.proj, f"{prefix}.attention.output.dense")
        copied(state, block.norm1, f"{prefix}.attention.output.LayerNorm")
        copied(state, block.mlp.fc1, f"{prefix}.intermediate.dense")
        copied(state, block.mlp.fc2, f"{prefix}.output.dense")
        copied(state, block.norm2, f"{prefix}.output.LayerNorm")


def test_parity_with_transformers(peer):
    import torch

    electra, generator, state = peer
    network = language.BERT_Small()
    load(network, state)
    batch = {**BATCH, "ids": RANDOM.integers(0, 30522, (3, 12)).astype("int32")}
    given = {
        name: torch.tensor(batch[part]).long()
        for name, part in (
            ("input_ids", "ids"),
            ("token_type_ids", "segments"),
            ("attention_mask", "mask"),
        )
    }
    with torch.no_grad():
        tokens = electra.electra(**given).last_hidden_state.numpy()
        classes = electra(**given).logits.numpy()
        masked = generator(**given).logits.numpy()
    real = MASK.astype(bool)
    close(array(network(batch))[real], tokens[real], 1e-5, "tokens")

    head = language.classifier(network, 2)
    copied(state, head.get_layer("pool"), "classifier.dense")
    copied(state, head.get_layer("logits"), "classifier.out_proj")
    close(array(head(batch)), classes, 1e-5, "classes")

    model = language.MaskedLanguageModel(network)
    copied(state, model.transform, "generator_predictions.dense")
    copied(state, model.norm, "generator_predictions.LayerNorm")
    model.bias.assign(state["generator_lm_head.bias"])
    positions = np.broadcast_to(np.arange(12, dtype="int32"), (3, 12))
    found = array(model({**batch, "positions": positions}))
    close(found[real], masked[real], 1e-5, "masked tokens")


ATTENTIONS = {
    "plain": None,
    "refined": lambda index: RefinedAttention(4),
    "positional": lambda index: PositionalAttention(4, grid=(1, 12), conv_start=False),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_padding_does_not_matter(name):
    network = tiny(attention=ATTENTIONS[name], length=12 if name == "positional" else None)
    y = array(network(BATCH))
    other = np.where(MASK == 1, BATCH["ids"], 49)
    changed = array(network({**BATCH, "ids": other.astype("int32")}))
    close(changed[MASK == 1], y[MASK == 1])
    if name != "positional":
        short = {part: value[1:2, :7] for part, value in BATCH.items()}
        close(array(network(short))[0], y[1, :7])


def test_gradients_reach_every_variable():
    model = language.MaskedLanguageModel(tiny(attention=ATTENTIONS["refined"]))
    positions = np.array([[1, 3], [2, 4], [0, 1]], "int32")
    weights = ops.convert_to_tensor(RANDOM.normal(size=(3, 2, 50)).astype("float32"))

    def loss():
        return ops.sum(model({**BATCH, "positions": positions}) * weights)

    _, found = gradients(loss, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        assert np.abs(gradient).max() > 0, variable.path


def test_models_are_saved(tmp_path):
    network = tiny(attention=ATTENTIONS["refined"])
    inputs = {**BATCH, "positions": np.array([[1], [2], [0]], "int32")}
    for model, batch in (
        (network, BATCH),
        (language.classifier(network, 3), BATCH),
        (language.MaskedLanguageModel(network), inputs),
    ):
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        close(array(loaded(batch)), array(model(batch)), 1e-6)


def test_texts_longer_than_the_positions():
    batch = {part: np.ones((1, 21), "int32") for part in BATCH}
    for function in (tiny(), lambda batch: check_batch(tiny(), batch)):
        with pytest.raises(ValueError, match=r"at most 20 tokens.*Received: 21 tokens"):
            function(batch)
    with pytest.raises(ValueError, match=r"at most 20 tokens"):
        tiny(length=21)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"below 50.*Received: ids from 50 to 50"):
        check_batch(tiny(), {"ids": np.full((1, 3), 50)})
    with pytest.raises(ValueError, match=r"carried maps.*SharedAttention for block 1"):
        tiny(attention=lambda index: (Attention, SharedAttention)[index](4))
