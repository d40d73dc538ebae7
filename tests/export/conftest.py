import keras
import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx.export import saved_model
from keras_vitx.losses import SmoothedCrossentropy


def make_tiny(**changes):
    """A model for non-square images, whose blocks affect the output as much as its stem."""
    arguments = {
        "dim": 24,
        "depth": 2,
        "num_heads": 2,
        "class_depth": 1,
        "layer_scale": 1.0,
        "patch_size": 8,
        "input_shape": (32, 16, 3),
        "classes": 5,
    }
    return kv.CaiT(**{**arguments, **changes})


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


def values_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


@pytest.fixture
def values():
    return values_of


@pytest.fixture(scope="session")
def values_before(trained):
    return values_of(trained)


@pytest.fixture(scope="session")
def exported(trained, values_before, tmp_path_factory):
    """The result of exporting the trained model."""
    return saved_model(trained, tmp_path_factory.mktemp("export") / "trained")


@pytest.fixture
def images():
    def make(batch, seed=7):
        return np.random.default_rng(seed).standard_normal((batch, 32, 16, 3), "float32")

    return make


@pytest.fixture
def old_saved_model(tmp_path):
    """A folder like a SavedModel, and a function that returns whether it is unchanged."""
    folder = tmp_path / "model"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"old")

    def is_intact():
        names = sorted(part.name for part in folder.iterdir())
        return (
            names == ["saved_model.pb", "variables"]
            and (folder / "saved_model.pb").read_bytes() == b"old"
            and [part.name for part in folder.parent.iterdir()] == ["model"]
        )

    return folder, is_intact
