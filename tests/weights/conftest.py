from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import make_tiny, weights_of

GOLDEN = Path(__file__).parents[1] / "golden"


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
