"""Parity with the public PyTorch implementations, by stage."""

import contextlib
import functools
import sys

import keras
import numpy as np
import pytest
from harness import FAMILIES, GOLDEN, GOLDEN_CASES, array, close, compiled, gradients
from keras import ops

import keras_vitx as kv
from keras_vitx.weights.names import checkpoint_name

every_case = pytest.mark.parametrize("case", GOLDEN_CASES)


@functools.cache
def loaded(case):
    return GOLDEN_CASES[case](), dict(np.load(GOLDEN / f"{case}.npz"))


def test_every_golden_file_is_enrolled():
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(GOLDEN_CASES)


def test_a_family_without_golden_data_says_why():
    measured = {loaded(case)[0].family for case in GOLDEN_CASES}
    docs = {f: sys.modules[getattr(kv, f).__module__].__doc__ for f in set(FAMILIES) - measured}
    silent = [family for family, doc in docs.items() if "no public code" not in doc]
    assert not silent, "add golden files, or 'There is no public code.' to the family's file"


@every_case
def test_inference(case):
    """The logits, and the tokens after each block."""
    model, golden = loaded(case)
    close(model.predict(golden["input"], verbose=0), golden["logits"])
    stages = [key for key in golden if key.startswith("block/")]
    assert stages
    names = [key.removeprefix("block/").replace(".", "_") for key in stages]
    # Blocks with shared maps return a pair, tokens first.
    outputs = [keras.tree.flatten(model.get_layer(name).output)[0] for name in names]
    cut = keras.Model(model.input, [*outputs, model.output])
    *found, logits = map(array, compiled(lambda: cut(golden["input"], training=False)))
    close(logits, golden["logits"])
    for key, tokens in zip(stages, found, strict=True):
        # For class blocks, the file has only the class tokens.
        close(tokens[:, : golden[key].shape[1]], golden[key], message=key)
    updated = [i for i, key in enumerate(stages) if golden[key].shape[1] == 1]
    for i in updated[1:]:
        np.testing.assert_array_equal(found[i - 1][:, 1:], found[i][:, 1:])


def test_a_modified_tower_starts_as_it_was_trained():
    """CLIP's, with heads mixed by the identity and Context Broadcasting of scale 0."""

    def attention(index):
        mix = kv.layers.HeadMixing(kernel_initializer="identity", name="mix")
        return kv.layers.Attention(3, on_weights=[mix])

    def mlp(index):
        context = kv.layers.ContextBroadcasting(scale=0.0, name="context")
        return kv.layers.MLP(activation="quick_gelu", on_output=[context])

    changed = GOLDEN_CASES["clip"](attention=attention, mlp=mlp, strict=False)
    golden = loaded("clip")[1]
    close(changed.predict(golden["input"], verbose=0), golden["logits"])


@contextlib.contextmanager
def restored(variables):
    """Restore the values of variables."""
    before = [np.array(ops.convert_to_numpy(variable.value)) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def training_logits(model, images):
    """The logits in training, of each classifier, as the public code returns them."""
    y = model(images, training=True, by_head=True)
    if not isinstance(y, dict):
        return y
    # In the public code, patches of the dense head have their own labels; DeiT's file was made
    # without distillation, which averages both heads in training, too.
    return y["head"] if "aux_head" in y else (y["head"] + y["head_dist"]) / 2


@every_case
def test_training(case):
    """Loss, logits, gradients and running statistics."""
    model, golden = loaded(case)
    variables = model.trainable_variables
    statistics = {
        checkpoint_name(variable.path, model.family)[0]: variable
        for variable in model.non_trainable_variables
        if "moving" in variable.path
    }
    assert set(statistics) == {key[6:] for key in golden if key.startswith("after/")}

    def loss():
        logits = training_logits(model, golden["input"])
        losses = keras.losses.sparse_categorical_crossentropy(
            golden["labels"], logits, from_logits=True
        )
        return ops.mean(losses), logits, [variable.value for variable in statistics.values()]

    with restored(model.non_trainable_variables):
        before = [array(variable.value) for variable in statistics.values()]
        (value, logits, after), found = gradients(loss, variables)
    close(value, golden["train/loss"])
    close(logits, golden["train/logits"])
    for name, old, values in zip(statistics, before, after, strict=True):
        expected = golden[f"after/{name}"]
        if name.endswith("running_var"):
            # PyTorch keeps the unbiased variance: n / (n - 1) of Keras'.
            n = 4 * (16 * 16 if name.startswith("patch_embed") else 17 * 17)
            expected = 0.9 * old + (expected - 0.9 * old) * (n - 1) / n
        close(values, expected, message=name)

    names = [checkpoint_name(variable.path, model.family)[0] for variable in variables]
    known = {key.removeprefix("grad/") for key in golden if key.startswith("grad/")}
    assert known <= set(names)
    largest = max(golden[f"grad/{name}"][0] for name in known)
    without_effect = 0
    for name, variable, gradient in zip(names, variables, found, strict=True):
        if name not in known:
            assert name.startswith("aux_head"), "the file's loss is that of the class token"
            assert not gradient.any(), name
            continue
        norm, product = golden[f"grad/{name}"].astype("float64")
        # Gradients that are zero in exact arithmetic are rounding errors on both sides: biases
        # that a softmax or a normalization cancels.
        floor = 6e-6 * largest
        without_effect += norm < floor
        size = np.linalg.norm(array(variable.value))
        assert abs(np.linalg.norm(gradient) - norm) <= 1e-4 * norm + floor, name
        found_product = np.sum(gradient.astype("float64") * array(variable.value))
        assert abs(found_product - product) <= 1e-4 * abs(product) + floor * size, name
    assert without_effect < len(names) / 4


# 0.1 times the mean over 2 and over 3 pairs, by the public network and its
# `SoftTargetCrossEntropyCosReg` on these weights and images, in training.
SIMILARITIES = {"refined_vit": (0.0940697, 0.0960464), "refined_vit_dense": (0.0928283, 0.0952188)}


def similarities(model, images):
    _, losses = compiled(lambda: (model(images, training=True), model.losses))
    return [float(array(loss)) for loss in losses]


@pytest.mark.parametrize("case", SIMILARITIES)
def test_similarity_loss_of_refined_vit(case):
    """The released loss compares the maps that the blocks carry on: pairs (0, 1), (2, 3) are 1."""
    golden = dict(np.load(GOLDEN / f"{case}.npz"))
    for pairs, expected in zip((2, 3), SIMILARITIES[case], strict=True):
        arguments = {"similarity": 0.1, "similarity_depth": pairs}
        model = GOLDEN_CASES[case](**arguments)
        losses = similarities(model, golden["input"])
        assert sum(losses) == pytest.approx(expected, rel=2e-6)
        assert losses[0] == pytest.approx(0.1 / pairs)
        assert losses[1] < 0.1 / pairs
    used = GOLDEN_CASES[case](similarity_of="used", **arguments)
    assert sum(similarities(used, golden["input"])) < 0.04, "refined maps differ"
