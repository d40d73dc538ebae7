"""Initial weights: bounds, spread, and their effect on maps and gradients."""

import keras
import numpy as np
import pytest
from harness import array

from keras_vitx import layers as kvl
from keras_vitx.layers.initializers import Normal, Uniform
from keras_vitx.layers.tokens import TokenDownsampling

MAPS = (None, 16, 20, 20)
IMAGES = (None, 8, 8, 3)
# A layer, the shape of its input, and the inputs per output of each convolution.
CONVOLUTIONS = [
    (kvl.PatchEmbedding(64, 4), IMAGES, {"proj/kernel": 48, "proj/bias": 48}),
    (
        kvl.ConvStem(64, (32, 32), 4),
        IMAGES,
        {"conv1/kernel": 147, "conv2/kernel": 288, "proj/kernel": 128, "proj/bias": 128},
    ),
    (TokenDownsampling(128, (4, 4)), (None, 17, 64), {"conv/kernel": 9, "conv/bias": 9}),
    (kvl.ReAttention(), MAPS, {"matrix/kernel": 16, "matrix/bias": 16}),
    (kvl.LocalMapConvolution(5), MAPS, {"kernel": 25}),
    (kvl.LocalMapConvolution(5, "row+column"), MAPS, {"kernel": 5}),
    (kvl.Refinement(), MAPS, {"expand/kernel": 16, "local/kernel": 9, "reduce/kernel": 48}),
    (
        kvl.ResidualRefinement(),
        MAPS,
        {"conv_exp/kernel": 16, "depth_sep_conv/kernel": 9, "conv_pro/kernel": 48},
    ),
]


@pytest.mark.parametrize(("layer", "shape", "inputs"), CONVOLUTIONS)
def test_convolutions_start_as_in_pytorch(layer, shape, inputs):
    """U(-1/sqrt n, 1/sqrt n) for kernel and bias."""
    layer.build(shape)
    for end, fan_in in inputs.items():
        (values,) = (array(v.value).ravel() for v in layer.weights if v.path.endswith(end))
        bound = fan_in**-0.5
        assert bound * (1 - 10 / len(values)) <= np.abs(values).max() <= bound, end
        # Four standard deviations of the variance of that many draws.
        assert abs(values.var() / (bound**2 / 3) - 1) < 4 * (0.8 / len(values)) ** 0.5, end


def test_starts_of_a_seed_are_the_same_on_every_backend():
    start = Normal(stddev=0.02, seed=3)
    for one in (start, start.clone()):
        expected = [[0.048343, 0.0028553], [-0.0102537, -0.0019342]]
        np.testing.assert_allclose(array(one((2, 2))), expected, rtol=1e-4)
    drawn = array(Uniform(-1, 3, seed=3)((4000,)))
    assert (drawn.min(), drawn.max()) == pytest.approx((-1, 3), abs=0.01)
    assert keras.backend.standardize_dtype(Normal(seed=3)((2,), "float16").dtype) == "float16"
