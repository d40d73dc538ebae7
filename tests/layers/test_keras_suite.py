"""Keras's own suite, with which it tests its layers, on every layer of the harness."""

import pytest
from cases import LAYERS
from harness import BACKEND, PRECISIONS, precision
from keras.src.testing import TestCase


@pytest.mark.filterwarnings("ignore:.*(shuffle=True|any trainable weights)")
@pytest.mark.parametrize("policy", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_keras_suite(name, policy):
    case = LAYERS[name]

    def make(dtype=policy):
        with precision(dtype):
            return case.make()

    # JAX and TensorFlow compile the step: there, one case per layer is trained.
    trained = BACKEND == "torch" or (policy == "float32" and "/" not in name)
    with precision(policy):
        TestCase().run_layer_test(
            make,
            {},
            case.inputs(lambda shape: (2, *shape)),
            run_training_check=trained,
            run_mixed_precision_check=policy == "float32",
        )
