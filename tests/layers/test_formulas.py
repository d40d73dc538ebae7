"""Every layer of the table against its formula in plain NumPy, with and without a mask."""

import keras
import numpy as np
import pytest
from cases import LAYERS
from harness import BACKEND, array, call, close, compiled
from plain import attend, draws, made, plain

from keras_vitx.layers import Attention

ATTENTIONS = [name for name, case in LAYERS.items() if isinstance(case.make(), Attention)]
# Compared with timm's and Pillow's transform (tests/data/test_photographs.py).
WITHOUT = ("ImagePreprocessing",)
NAMES = [name for name in LAYERS if name.split("/")[0] not in WITHOUT]


def in_float64(x):
    return keras.tree.map_structure(lambda each: each.astype("float64"), x)


def compare(found, expected):
    found, expected = keras.tree.flatten(found), keras.tree.flatten(expected)
    for one, other in zip(found, expected, strict=True):
        close(array(one), other)


@pytest.mark.parametrize("name", NAMES)
def test_formula(name):
    layer, x = made(name)
    # The pass that draws has no one output.
    expected = [plain(layer, in_float64(x), t) for t in (False, True) if not (t and draws(layer))]
    found = compiled(lambda: [call(layer, x, training) for training in (False, True)])
    assert all(np.isfinite(array(part)).all() for part in keras.tree.flatten(found))
    for one, other in zip(found, expected, strict=False):
        compare(one, other)


def masks(maps):
    """Return masks of several shapes; in the first, one query has no key (pytorch#160064)."""
    batch, _, queries, keys = maps.shape
    mask = np.random.default_rng(3).random((batch, queries, keys)) < 0.5
    mask[0, -1] = False
    return mask, mask[:, :1], mask[0], mask[:, :, 1:2]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_maps(name):
    layer, x = made(name)
    _, maps = attend(layer, in_float64(x))
    given = [None, *masks(maps)[: 4 if BACKEND == "torch" else 1]]
    found = compiled(
        lambda: [
            (layer(x, attention_mask=m, return_attention_scores=True), layer(x, attention_mask=m))
            for m in given
        ]
    )
    for mask, (both, alone) in zip(given, found, strict=True):
        expected = attend(layer, in_float64(x), mask=mask)
        compare(both, expected)
        compare(alone, expected[0])
