"""Gradients in half precision are those in float32, up to its rounding."""

import keras
import numpy as np
import pytest
from devices.zoo import TINY
from harness import BACKEND, precision

if BACKEND != "torch":
    pytest.skip("run once, by the backend that starts fastest", allow_module_level=True)

import torch

# Of the norm of all gradients. DeepViT's would be .03 and .005 if its maps, which are normalized in
# float32, were rounded before.
BOUNDS = {"mixed_bfloat16": 0.012, "mixed_float16": 0.002}
# It normalizes maps in half precision, four times.
REFINED = {"mixed_bfloat16": 0.08, "mixed_float16": 0.02}


def gradients(family, policy, weights=None):
    """Return the model's weights and the gradients of a loss of two images."""
    keras.utils.set_random_seed(0)
    with precision(policy):
        model = TINY[family](drop_path=0.0, classifier_activation=None)
    if weights is None:
        for variable in model.trainable_variables:
            # At the start, its maps are uniform up to the rounding of half precision.
            if family == "RefinedViT" and "qkv/kernel" in variable.path:
                variable.assign(variable * 10)
    else:
        model.set_weights(weights)
    x = np.random.default_rng(0).standard_normal((2, *model.input_shape[1:]), "float32")
    outputs = model(torch.tensor(x), training=True)
    torch.nn.functional.cross_entropy(outputs.float(), torch.tensor([3, 7])).backward()
    found = [v.value.grad.double().flatten() for v in model.trainable_variables]
    return model.get_weights(), torch.cat(found)


@pytest.mark.parametrize("family", TINY)
def test_gradients_are_those_in_float32(family):
    weights, wanted = gradients(family, "float32")
    for policy, bound in (REFINED if family == "RefinedViT" else BOUNDS).items():
        _, found = gradients(family, policy, weights)
        error = float((found - wanted).norm() / wanted.norm())
        assert error < bound, (policy, error)
