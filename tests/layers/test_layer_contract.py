"""What every layer must do, whatever it computes."""

import json

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    LAYERS,
    MIXED,
    Reloading,
    array,
    call,
    close,
    gradients,
    in_model,
    joined,
    numbers,
    precision,
    randomize,
)
from keras import ops
from plain import made

from keras_vitx import layers

every_layer = pytest.mark.parametrize("name", LAYERS)


def test_every_layer_is_enrolled():
    public = {
        name
        for name, value in vars(layers).items()
        if name[0].isupper() and value is not layers.MapLayer
    }
    assert public
    assert public - {name.split("/")[0] for name in LAYERS} == set()


def test_every_layer_states_its_shapes():
    for name, case in LAYERS.items():
        assert "Input" in type(case.make()).__doc__, name


def shapes(outputs):
    return [tuple(part.shape) for part in keras.tree.flatten(outputs)]


@every_layer
def test_shapes(name):
    case = LAYERS[name]
    layer, x = made(name, random=False)
    found = shapes(call(layer, x))
    symbolic = case.inputs(lambda shape: keras.KerasTensor((3, *shape)))
    assert shapes(layer.compute_output_spec(symbolic)) == found
    free = [(None, *shape[1:]) for shape in found]
    assert shapes(case.make()(case.inputs(keras.Input))) == free


@every_layer
def test_config(name):
    layer, _ = made(name, random=False)
    config = layer.get_config()
    json.dumps(keras.saving.serialize_keras_object(layer))
    twin = type(layer).from_config(config)
    assert not twin.built
    assert twin.get_config() == config
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(twin) is type(layer)
    assert twin.get_config() == config


@pytest.fixture(scope="module")
def reloading(tmp_path_factory):
    reloading = Reloading(tmp_path_factory.mktemp("layers"))
    for name, case in LAYERS.items():
        # A precision that is not the global one where the file is read. Models are also
        # saved in the others.
        with precision("mixed_bfloat16"):
            model = in_model(case)
        randomize(model)
        reloading.add(name, model)
    reloading.run()
    return reloading


# On each backend, the files of every family's models are (tests/models/test_model_contract.py).
@pytest.mark.backend_free
@every_layer
def test_files_in_a_fresh_process(name, reloading):
    reloading.check(name)


def tensors(x):
    return keras.tree.map_structure(ops.convert_to_tensor, x)


# Models run in both on every backend.
@every_layer
@pytest.mark.parametrize("policy", MIXED if BACKEND == "torch" else ("mixed_bfloat16",))
def test_mixed_precision(name, policy):
    exact, x = made(name)
    with precision(policy):
        mixed, _ = made(name)
    mixed.set_weights(exact.get_weights())
    assert all(variable.dtype == "float32" for variable in mixed.weights)
    # First, because a training pass changes running statistics.
    close(array(joined(call(mixed, x))), array(joined(call(exact, x))), 0.05, name)
    dtype = "float32" if LAYERS[name].float32 else policy.removeprefix("mixed_")
    for training in (False, True):
        for part in keras.tree.flatten(call(mixed, tensors(x), training)):
            assert keras.backend.standardize_dtype(part.dtype) == dtype
            assert np.isfinite(array(part)).all()

    # Compiled, where the backend compiles.
    def loss():
        return ops.mean(ops.cast(joined(call(mixed, tensors(x))), "float32"))

    if mixed.trainable_variables:
        value, found = gradients(loss, mixed.trainable_variables)
        assert all(np.isfinite(gradient).all() for gradient in (value, *found))


@every_layer
def test_gradients_reach_every_variable(name):
    layer, x = made(name)
    variables = layer.trainable_variables
    if not variables:
        return
    weights = ops.convert_to_tensor(numbers(joined(call(layer, x)).shape, seed=9))
    _, found = gradients(lambda: ops.sum(joined(call(layer, x)) * weights), variables)
    largest = max(np.abs(gradient).max() for gradient in found)
    for variable, gradient in zip(variables, found, strict=True):
        relative = np.abs(gradient).max() / largest
        if variable.path.endswith(LAYERS[name].zero_gradients or "\0"):
            assert relative < 1e-5, variable.path
        else:
            assert relative > 1e-5, variable.path


@every_layer
def test_training_and_remat(name):
    layer, x = made(name)
    weights = ops.convert_to_tensor(numbers(joined(call(layer, x)).shape, seed=9))
    assert np.isfinite(array(joined(call(layer, x, training=True)))).all()
    if not layer.trainable_variables:
        return
    # If training draws random numbers, compare the pass without draws.
    training = not LAYERS[name].random

    def run(wrap):
        y = wrap(lambda x: joined(call(layer, x, training)))(tensors(x))
        return ops.sum(y * weights)

    value, found = gradients(lambda: run(keras.remat), layer.trainable_variables)
    expected, expected_gradients = gradients(lambda: run(lambda f: f), layer.trainable_variables)
    close(value, expected, 1e-5, name)
    largest = max([np.abs(gradient).max() for gradient in expected_gradients], default=0)
    for one, other in zip(found, expected_gradients, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * largest


@every_layer
def test_running_statistics_move_in_training_only(name):
    layer, x = made(name)
    statistics = [variable for variable in layer.weights if "moving_" in variable.path]
    before = [array(variable.value) for variable in statistics]
    for training in (False, True):
        call(layer, x, training)
        for old, variable in zip(before, statistics, strict=True):
            assert (array(variable.value) != old).any() == training, variable.path
