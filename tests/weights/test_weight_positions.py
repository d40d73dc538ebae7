import numpy as np
import pytest

from keras_vitx.weights import resample

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize(
    ("old", "new", "prefix"),
    [
        ((14, 14), (24, 24), 0),
        ((24, 24), (14, 14), 0),
        ((14, 14), (16, 12), 0),
        ((16, 12), (7, 30), 0),
        ((7, 28), (14, 14), 0),
        ((14, 14), (5, 9), 2),
        ((2, 2), (1, 5), 1),
    ],
)
def test_as_the_public_checkpoints_are_resampled(old, new, prefix, timm):
    import torch

    entries = np.random.default_rng(0).normal(size=(1, prefix + old[0] * old[1], 5))
    entries = entries.astype("float32")
    expected = timm.layers.resample_abs_pos_embed(
        torch.tensor(entries), list(new), list(old), num_prefix_tokens=prefix
    ).numpy()
    found = resample(entries, old, new, prefix)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found[:, :prefix], entries[:, :prefix])


def test_same_grid_is_left_alone():
    entries = np.random.default_rng(0).normal(size=(1, 12, 3)).astype("float32")
    np.testing.assert_array_equal(resample(entries, (3, 4), (3, 4)), entries)


def test_a_constant_stays_constant():
    np.testing.assert_allclose(resample(np.full((1, 9, 2), 3.0), (3, 3), (8, 2)), 3.0, rtol=1e-6)
