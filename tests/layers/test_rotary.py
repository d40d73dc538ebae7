"""Rotary positions, by the faults that others reported of theirs."""

import numpy as np
import pytest
from harness import MIXED, array, numbers, precision
from keras import ops

from keras_vitx.layers import RotaryEmbedding
from keras_vitx.layers.base import tell_grid


def rotary(grid, prefix, size=16, **arguments):
    layer = RotaryEmbedding(**arguments)
    tell_grid(layer, *grid, prefix)
    layer.build(2 * [(None, prefix + grid[0] * grid[1], 1, size)])
    return layer


@pytest.mark.backend_free
@pytest.mark.parametrize("order", ("yx", "xy"))
def test_rows_and_columns_of_rectangles(order):
    """huggingface/pytorch-image-models#2541: height and width were swapped."""
    layer = rotary((2, 5), 0, order=order)
    angles = array(layer.angles()).reshape(2, 5, 2, 4)
    of_rows, of_columns = (0, 1) if order == "yx" else (1, 0)
    np.testing.assert_array_equal(angles[:, :, of_rows, 0], np.indices((2, 5))[0])
    np.testing.assert_array_equal(angles[:, :, of_columns, 0], np.indices((2, 5))[1])


@pytest.mark.backend_free
def test_tokens_before_the_patches_stay():
    """huggingface/pytorch-image-models#2478: the first patch stayed, not the class token."""
    x = numbers((1, 5 + 6, 1, 16))
    layer = rotary((2, 3), 5, centered=True, halves=True)
    query, _ = layer((x, x))
    changed = np.abs(array(query) - x).max(axis=(0, 2, 3)) > 0
    assert changed.tolist() == [False] * 5 + [True] * 6
    # `kv.analysis.embedding_maps` has patches only.
    np.testing.assert_array_equal(array(layer((x[:, 5:], x[:, 5:]))[0]), array(query)[:, 5:])


@pytest.mark.parametrize("policy", MIXED)
def test_angles_are_float32_in_half_precision(policy):
    """EleutherAI/gpt-neox#1003, facebookresearch/xformers#325."""
    x = ops.cast(numbers((1, 64 * 64, 1, 16)), policy.removeprefix("mixed_"))
    expected = array(rotary((64, 64), 0, temperature=1e4)((x, x))[0])
    with precision(policy):
        found, _ = rotary((64, 64), 0, temperature=1e4)((x, x))
    assert found.dtype == x.dtype
    assert np.abs(array(found) - expected).max() < 2**-7 * np.abs(expected).max()
