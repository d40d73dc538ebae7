import pytest
from harness import FAMILIES


def make_tiny(**changes):
    """A model of images that are not square, whose blocks affect the output as much as its stem."""
    sizes = {"depth": 2, "layer_scale": 1.0, "input_shape": (32, 16, 3)}
    return FAMILIES["CaiT"](**sizes | changes)


@pytest.fixture
def tiny():
    return make_tiny


@pytest.fixture(scope="session")
def unused():
    """A model that no test changes."""
    return make_tiny()
