"""Resampling to any grid against PyTorch's."""

import numpy as np
import pytest
from harness import numbers
from hypothesis import given
from hypothesis import strategies as st

from keras_vitx.positions import resample

pytestmark = pytest.mark.backend_free
GRIDS = st.tuples(st.integers(1, 24), st.integers(1, 24))


@given(GRIDS, GRIDS, st.integers(0, 3), st.booleans())
def test_position_embeddings_are_resampled_as_by_pytorch(old, new, prefix, antialias):
    torch = pytest.importorskip("torch")
    given = numbers((1, prefix + old[0] * old[1], 5))
    found = resample(given, old, new, prefix, antialias)
    grid = torch.tensor(given[:, prefix:]).reshape(1, *old, 5).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(grid, new, mode="bicubic", antialias=antialias)
    wanted = grid if old == new else wanted
    np.testing.assert_array_equal(found[:, :prefix], given[:, :prefix])
    wanted = wanted.permute(0, 2, 3, 1).reshape(1, -1, 5)
    np.testing.assert_allclose(found[:, prefix:], wanted, atol=2e-5)
