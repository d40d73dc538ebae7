"""Layers of one family in another."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, randomize

from keras_vitx import layers as kvl

IMAGES = numbers((2, 16, 16, 3))
# The attention and the MLP of each block of a family; None is its own.
CROSSINGS = {
    "re-attention in ConViT": (
        lambda index: (
            kvl.GatedPositionalAttention(4, on_weights=[kvl.ReAttention()])
            if index < 2
            else kvl.DeepAttention(4, map_scale=0.5)
        ),
        None,
    ),
    "shared maps in ViT": (
        lambda index: (
            kvl.SharedAttention(2, on_weights=[kvl.HeadMixing()]) if index else kvl.Attention(2)
        ),
        None,
    ),
    "refinement in PiT": (
        lambda index: kvl.RefinedAttention(2, expansion=2, reduction=False),
        lambda index: kvl.MLP(2.0, on_hidden=[kvl.ContextBroadcasting(scale=0.5)]),
    ),
    "attention in Mixer": (
        lambda index: kvl.DeepAttention(2) if index else kvl.TokenMixing(4),
        lambda index: kvl.MLP(2.0, on_input=[kvl.ContextBroadcasting("max")]),
    ),
}
CROSSINGS |= {
    f"talking heads in {family}": (lambda index: kvl.TalkingHeadsAttention(2), None)
    for family in FAMILIES
    if family not in {case.split()[-1] for case in CROSSINGS}
}
HERE = CROSSINGS if BACKEND == "torch" else ("re-attention in ConViT", "shared maps in ViT")


@pytest.mark.parametrize("case", HERE)
def test_crossings(case, tmp_path):
    attention, mlp = CROSSINGS[case]
    model = FAMILIES[case.split()[-1]](attention=attention, mlp=mlp, drop_path=0.0)
    randomize(model)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    assert np.isfinite(model.train_on_batch(IMAGES, np.array([0, 1])))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    close(array(loaded(IMAGES)), array(model(IMAGES)), 1e-6)
