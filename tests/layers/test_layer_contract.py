"""What every layer must do, whatever it computes."""

import json
from math import prod

import keras
import numpy as np
import pytest
from cases import FLOAT32, LAYERS, NO_EFFECT, WITHOUT_CASE
from harness import (
    BACKEND,
    MIXED,
    Reloading,
    array,
    call,
    close,
    compiled,
    gradients,
    joined,
    numbers,
    precision,
    randomize,
)
from keras import ops
from keras.src.testing import TestCase
from plain import draws, made

from keras_vitx.keras_internals import children, sublayers

every_layer = pytest.mark.parametrize("name", LAYERS)
FIRST = [name for name in LAYERS if "/" not in name]
# Where each is compiled, one case per layer: what differs between the others is in their formulas.
HERE = list(LAYERS) if BACKEND == "torch" else FIRST
# Keras's suite takes minutes to compile and asks little of a backend: elsewhere, layers that have
# kernels, statistics or draws.
SUITE = list(LAYERS) if BACKEND == "torch" else ("Attention", "HeadMixing", "Block", "ConvStem")


def test_every_layer_is_enrolled():
    assert len(LAYERS) > 70
    assert not WITHOUT_CASE, "write a row `NAME: (lambda: NAME(...), shape)` in cases.py"
    assert all("Input" in type(case.make()).__doc__ for case in LAYERS.values()), "its shape"


@pytest.mark.backend_free
@every_layer
def test_config(name):
    layer, _ = made(name, random=False)
    config = layer.get_config()
    json.dumps(keras.saving.serialize_keras_object(layer))
    twin = type(layer).from_config(config)
    assert not twin.built and twin.get_config() == config
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(twin) is type(layer) and twin.get_config() == config


@pytest.mark.filterwarnings("ignore:.*(shuffle=True|any trainable weights)")
@pytest.mark.parametrize("name", SUITE)
def test_keras_suite(name):
    """Keras's own suite, with which it tests its layers."""
    case = LAYERS[name]

    def make(dtype="float32"):
        with precision(dtype):
            return case.make()

    shape = case.inputs(lambda shape: (2, *shape))
    TestCase().run_layer_test(make, {}, shape)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", FIRST)
def test_what_is_frozen_stays_frozen(name):
    """The layer as a whole, each layer directly inside it, and all but one of these."""

    def inside(layer):
        return [part for part in children(layer) if part.weights]

    def flags(layer):
        return [each.trainable for each in (*layer.weights, *inside(layer))]

    for index in (None, *range(len(inside(made(name)[0])))):
        layer, _ = made(name)
        parts = inside(layer)
        layer.trainable = index is not None and len(parts) != 2
        if index is not None:
            parts[index].trainable = not layer.trainable
        twin = type(layer).from_config(layer.get_config())
        twin(LAYERS[name].inputs(keras.Input))
        assert flags(twin) == flags(layer)


@pytest.fixture(scope="module")
def reloading(tmp_path_factory):
    reloading = Reloading(tmp_path_factory.mktemp("layers"))
    for name in FIRST:
        # A precision that is not the global one where the file is read. Models are also
        # saved in the others.
        with precision("mixed_bfloat16"):
            model = LAYERS[name].model()
        randomize(model)
        reloading.add(name, model, keras.tree.flatten(LAYERS[name].values(2)))
    reloading.run()
    return reloading


# On each backend, the files of every family's models are (tests/models/test_model_contract.py).
@pytest.mark.backend_free
@pytest.mark.parametrize("name", FIRST)
def test_files_in_a_fresh_process(name, reloading):
    reloading.check(name)


def tensors(x):
    return keras.tree.map_structure(ops.convert_to_tensor, x)


def shapes(outputs):
    return [tuple(part.shape) for part in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("name", HERE)
def test_shapes_and_gradients(name):
    """Gradients reach every variable, and recomputation does not change them."""
    case = LAYERS[name]
    layer, x = made(name)
    spec = shapes(
        layer.compute_output_spec(case.inputs(lambda shape: keras.KerasTensor((3, *shape))))
    )
    assert shapes(case.make()(case.inputs(keras.Input))) == [(None, *shape[1:]) for shape in spec]
    width = sum(prod(shape[1:]) for shape in spec)
    weights = ops.convert_to_tensor(numbers((3, width), seed=9))

    def loss(training=False, wrap=lambda function: function):
        def run(x):
            y = call(layer, x, training)
            assert shapes(y) == spec
            return joined(y)

        return ops.sum(wrap(run)(tensors(x)) * weights)

    variables = layer.trainable_variables
    expected, wanted = gradients(loss, variables)
    largest = max([np.abs(gradient).max() for gradient in wanted], default=0)
    for variable, gradient in zip(variables, wanted, strict=True):
        has_effect = not variable.path.endswith(NO_EFFECT)
        assert (np.abs(gradient).max() > 1e-5 * largest) == has_effect, variable.path

    if not variables:
        return
    # If training draws random numbers, compare the pass without draws.
    training = not draws(layer)
    if training:
        expected, wanted = gradients(lambda: loss(True), variables)
    value, found = gradients(lambda: loss(training, keras.remat), variables)
    close(value, expected, 1e-5, name)
    largest = max(np.abs(gradient).max() for gradient in wanted)
    for one, other in zip(found, wanted, strict=True):
        # XLA sums in another order on processors with AMX.
        assert np.abs(one - other).max() <= 1e-4 * largest


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("policy", MIXED if BACKEND == "torch" else MIXED[:1])
def test_mixed_precision(name, policy):
    exact, x = made(name)
    with precision(policy):
        mixed, _ = made(name)
    assert all(variable.dtype == "float32" for variable in mixed.weights)
    # Training comes last, because it changes running statistics.
    expected, *found = compiled(
        lambda: (call(exact, x), call(mixed, x), call(mixed, tensors(x), training=True))
    )
    dtype = "float32" if name.split("/")[0] in FLOAT32 else policy.removeprefix("mixed_")
    found_parts = keras.tree.flatten(found)
    assert {keras.backend.standardize_dtype(part.dtype) for part in found_parts} == {dtype}
    assert all(np.isfinite(array(part)).all() for part in found_parts)
    for one, other in zip(*map(keras.tree.flatten, (found[0], expected)), strict=True):
        close(array(one), array(other), 0.05, name)

    def loss():
        return ops.mean(ops.cast(joined(call(mixed, tensors(x))), "float32"))

    value, found = gradients(loss, mixed.trainable_variables)
    assert all(np.isfinite(gradient).all() for gradient in (value, *found))


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch checks derivatives by differences")
@every_layer
def test_second_derivatives_in_float64(name):
    """The first and the second derivative along a direction are those of finite differences."""
    import torch

    case = LAYERS[name]
    if name.startswith("ImagePreprocessing"):
        pytest.skip("it returns float32, as documented")
    with precision("float64"):
        layer = case.make()
    x = keras.tree.map_structure(lambda x: torch.tensor(x).double(), case.values(2))
    call(layer, x)
    randomize(layer)

    def moved(step):
        values = keras.tree.map_structure(lambda part: part + step * torch.cos(3 * part), x)
        y = joined(call(layer, values))
        # A few sums of all outputs: PyTorch goes back from each one, twice.
        return y @ torch.tensor(numbers((y.shape[1], 3)), dtype=torch.float64)

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    keras.config.disable_flash_attention()
    try:
        assert torch.autograd.gradcheck(moved, (step,))
        assert torch.autograd.gradgradcheck(moved, (step,), atol=1e-4)
        _, change = torch.func.jvp(moved, (step.detach(),), (torch.ones_like(step),))
        assert torch.isfinite(change).all()
    finally:
        keras.config.enable_flash_attention()


def parts_of(layer):
    """The children that compute in training; the kernel of a depthwise convolution is read."""
    parts = [part for part in sublayers(layer)[1:] if getattr(part, "rate", 1)]
    return [part for part in parts if not isinstance(part, keras.layers.DepthwiseConv2D)]


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's hooks")
@every_layer
def test_hooks_fire(name):
    """Also on children that a fast path would not call."""
    layer, x = made(name)
    parts, fired = parts_of(layer), []
    for part in parts:
        for register in (part.register_forward_pre_hook, part.register_forward_hook):
            register(lambda part, *_: fired.append(part.path))
    call(layer, x, training=True)
    assert set(fired) == {part.path for part in parts}
    # Each at its only call; an MLP drops twice, and positions are projected per axis.
    once = [p for p in parts if p.name != "pos_proj" and not isinstance(p, keras.layers.Dropout)]
    assert all(fired.count(part.path) == 2 for part in once)
