"""What every layer must do, whatever it computes."""

import json

import keras
import numpy as np
import pytest
from harness import (
    LAYERS,
    MIXED,
    PRECISIONS,
    Reloading,
    array,
    call,
    close,
    gradients,
    in_model,
    numbers,
    precision,
    randomize,
)
from keras import ops

from keras_vitx import layers

every_layer = pytest.mark.parametrize("name", LAYERS)


def built(name):
    case = LAYERS[name]
    layer = case.make()
    layer.build((None, *case.shape))
    return layer, numbers((3, *case.shape))


def test_every_layer_is_enrolled():
    public = {name for name in vars(layers) if name[0].isupper()}
    assert public
    assert public - {name.split("/")[0] for name in LAYERS} == set()


def test_every_layer_states_its_shapes():
    for name in {name.split("/")[0] for name in LAYERS} - {"TalkingHeadsAttention"}:
        assert "Input" in getattr(layers, name).__doc__, name


@every_layer
def test_shapes(name):
    case = LAYERS[name]
    layer, x = built(name)
    shape = tuple(call(layer, x).shape)
    assert tuple(layer.compute_output_spec(keras.KerasTensor(x.shape)).shape) == shape
    assert tuple(case.make()(keras.Input(case.shape)).shape) == (None, *shape[1:])


@every_layer
def test_config(name):
    layer, _ = built(name)
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
        for policy in PRECISIONS:
            with precision(policy):
                model = in_model(case.make(), case.shape)
            randomize(model)
            reloading.add(f"{name}@{policy}", model)
    reloading.run()
    return reloading


@every_layer
@pytest.mark.parametrize("policy", PRECISIONS)
def test_files_in_a_fresh_process(name, policy, reloading):
    reloading.check(f"{name}@{policy}")


@every_layer
@pytest.mark.parametrize("policy", MIXED)
def test_mixed_precision(name, policy):
    exact, x = built(name)
    randomize(exact)
    with precision(policy):
        mixed, _ = built(name)
    mixed.set_weights(exact.get_weights())
    assert all(variable.dtype == "float32" for variable in mixed.weights)
    for training in (False, True):
        y = call(mixed, ops.cast(x, "float32"), training)
        assert keras.backend.standardize_dtype(y.dtype) == policy.removeprefix("mixed_")
        assert np.isfinite(array(y)).all()
    close(array(call(mixed, x)), array(call(exact, x)), 0.05, name)

    # Compiled, where the backend compiles.
    def loss():
        return ops.mean(ops.cast(call(mixed, ops.convert_to_tensor(x)), "float32"))

    if mixed.trainable_variables:
        value, found = gradients(loss, mixed.trainable_variables)
        assert all(np.isfinite(gradient).all() for gradient in (value, *found))


@every_layer
def test_gradients_reach_every_variable(name):
    layer, x = built(name)
    randomize(layer)
    variables = layer.trainable_variables
    if not variables:
        return
    weights = ops.convert_to_tensor(numbers(call(layer, x).shape, seed=9))
    _, found = gradients(lambda: ops.sum(call(layer, x) * weights), variables)
    largest = max(np.abs(gradient).max() for gradient in found)
    for variable, gradient in zip(variables, found, strict=True):
        relative = np.abs(gradient).max() / largest
        if variable.path.endswith(LAYERS[name].zero_gradients or "\0"):
            assert relative < 1e-5, variable.path
        else:
            assert relative > 1e-5, variable.path


@every_layer
def test_training_and_remat(name):
    layer, x = built(name)
    randomize(layer)
    weights = ops.convert_to_tensor(numbers(call(layer, x).shape, seed=9))
    assert np.isfinite(array(call(layer, x, training=True))).all()
    if not layer.trainable_variables:
        return
    # Where training draws, what can be compared is the pass without draws.
    training = not LAYERS[name].random

    def run(wrap):
        y = wrap(lambda x: call(layer, x, training))(ops.convert_to_tensor(x))
        return ops.sum(y * weights)

    value, found = gradients(lambda: run(keras.remat), layer.trainable_variables)
    expected, expected_gradients = gradients(lambda: run(lambda f: f), layer.trainable_variables)
    close(value, expected, 1e-5, name)
    largest = max([np.abs(gradient).max() for gradient in expected_gradients], default=0)
    for one, other in zip(found, expected_gradients, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * largest
