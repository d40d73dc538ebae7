"""XLA under TensorFlow (`jit_compile=True`) takes every family, forward and in training."""

import keras
import numpy as np
import pytest
from devices.zoo import TINY
from harness import BACKEND, precision

if BACKEND != "tensorflow":
    pytest.skip("compiled by TensorFlow", allow_module_level=True)

SHALLOW = {"CaiT": {"depth": 1, "class_depth": 1}, "ConViT": {"depth": 2, "local_depth": 1}}
IMAGES = np.random.default_rng(0).standard_normal((2, 32, 32, 3), "float32")
LABELS = np.array([3, 7])
# Of the largest output, and of the loss after two steps. XLA rounds half precision elsewhere.
BOUNDS = {"float32": 1e-5, "mixed_bfloat16": 0.05, "mixed_float16": 0.01}


def run(family, policy, jit_compile):
    """Return the outputs, and the losses of two steps of training."""
    keras.utils.set_random_seed(0)
    with precision(policy):
        model = TINY[family](**SHALLOW.get(family, {}), drop_path=0.0)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=jit_compile)
    outputs = model.predict(IMAGES, verbose=0)
    return outputs, [float(model.train_on_batch(IMAGES, LABELS)) for _ in range(2)]


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        *((family, "float32") for family in TINY),
        *((family, "mixed_bfloat16") for family in ("CaiT", "ConViT", "DeepViT", "RefinedViT")),
        ("CaiT", "mixed_float16"),
    ],
)
def test_as_without(family, policy):
    found, wanted = (run(family, policy, jit_compile) for jit_compile in (True, False))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=BOUNDS[policy] * np.max(theirs))
