"""Normalizers of any logits: sums, order, gradients, long rows and rows of one key."""

import numpy as np
import pytest
from harness import array, close, gradients, numbers
from keras import Variable, ops
from plain import normalize

from keras_vitx.layers import Attention
from keras_vitx.layers.normalizers import NORMALIZERS

each = pytest.mark.parametrize("name", NORMALIZERS)
SUM_TO_1 = ("sparsemax", "entmax15")
LOGITS = numbers((2, 3, 4, 9), scale=3)


def run(name, logits):
    return array(NORMALIZERS[name](ops.convert_to_tensor(logits)))


@each
@pytest.mark.parametrize("scale", (0.01, 1, 20))
def test_formula(name, scale):
    logits = scale * LOGITS
    maps = run(name, logits)
    close(maps, normalize(name, logits.astype("float64")), 3e-5)
    assert (maps >= 0).all()
    sums = maps.sum(-1)
    if name in SUM_TO_1:
        close(sums, np.ones_like(sums))
    elif name != "relu":
        assert (sums < 9 if name == "sigmoid" else sums < 1 + 1e-5).all()
    order = np.random.default_rng(0).permutation(9)
    close(run(name, logits[..., order]), maps[..., order], 1e-5)


@each
def test_a_long_row_of_equal_logits_and_a_row_of_one_key(name):
    for keys in (1, 4097):
        logits = np.repeat(np.float32([[0], [-30]]), keys, axis=1)[:, None, None]
        variable = Variable(logits)

        def total(variable=variable):
            maps = NORMALIZERS[name](ops.convert_to_tensor(variable))
            return ops.sum(maps**2), maps

        (_, maps), (slope,) = gradients(total, [variable])
        found, expected = (
            (each**2).sum(-1) for each in (maps, normalize(name, np.float64(logits)))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-12)
        assert np.isfinite(slope).all()
        if name in SUM_TO_1:
            close(maps, np.full(logits.shape, 1 / keys), 1e-3)


def test_gates_start_open():
    x = numbers((2, 5, 8))
    for gate in ("head", "element"):
        plain, gated = Attention(2), Attention(2, gate=gate)
        for one in (plain, gated):
            one.build(x.shape)
        gated.set_weights([*plain.get_weights(), *gated.get_weights()[len(plain.weights) :]])
        close(array(gated(x)), array(plain(x)), 0.05)
