import keras
import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx.losses import SmoothedCrossentropy


def make_tiny(depth=2, **changes):
    """A model for non-square images, whose blocks affect the output as much as its stem."""
    sizes = {"patch_size": 8, "input_shape": (32, 16, 3), "classes": 5}
    return kv.CaiT(24, depth, 2, 1, layer_scale=1.0, **{**sizes, **changes})


@pytest.fixture
def tiny():
    return make_tiny


@pytest.fixture(scope="session")
def unused():
    """A model for calls that must fail before using it."""
    return make_tiny()


@pytest.fixture(scope="session")
def trained():
    """A compiled model after training, with optimizer state.

    Every weight is far from its initial value, so that a lost one would show.
    """
    model = make_tiny()
    model.compile("adam", SmoothedCrossentropy(0.1), metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + random.normal(0, 0.3, weight.shape).astype("float32"))
    model.optimizer.iterations.assign(7)
    return model


@pytest.fixture(scope="session")
def values():
    def values_of(model):
        variables = [*model.variables, *model.optimizer.variables]
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    return values_of


@pytest.fixture
def images():
    def make(batch, seed=7):
        return np.random.default_rng(seed).standard_normal((batch, 32, 16, 3), "float32")

    return make
