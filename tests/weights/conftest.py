from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vitx as kv
from keras_vitx.weights import save_safetensors, save_torch

GOLDEN = Path(__file__).parents[1] / "golden"


SAVERS = {
    ".safetensors": save_safetensors,
    ".pth": save_torch,
    ".weights.h5": keras.Model.save_weights,
    ".keras": keras.Model.save,
}
"""Functions that write the weights of a model, by suffix."""


def make_tiny(**changes):
    """Make the model of the golden case, with changed arguments."""
    arguments = {
        "dim": 24,
        "depth": 3,
        "num_heads": 4,
        "patch_size": 8,
        "input_shape": (32, 32, 3),
        "classes": 10,
        "classifier_activation": None,
    }
    return kv.CaiT(**{**arguments, **changes})


@pytest.fixture
def tiny():
    return make_tiny


@pytest.fixture(scope="session")
def golden_model():
    """The model of the golden case with its weights; tests must not change it."""
    return make_tiny(weights=GOLDEN / "cait.safetensors")


@pytest.fixture(scope="session")
def unused():
    """A model for calls that must fail before changing it."""
    return make_tiny()


@pytest.fixture
def golden_file():
    return GOLDEN / "cait.safetensors"


@pytest.fixture
def golden_tensors(golden_file):
    return load_file(golden_file)


def weights_of(model):
    return {v.path: np.array(keras.ops.convert_to_numpy(v.value)) for v in model.weights}


@pytest.fixture
def same_weights():
    """Check that the weights of two models are equal, except paths that start with `but`."""

    def check(one, other, but="\0"):
        one, other = (
            {name: array for name, array in weights_of(model).items() if not name.startswith(but)}
            for model in (one, other)
        )
        assert one.keys() == other.keys() and len(one) > 50
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)

    return check
