"""Layers of one family in another."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, randomize

from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    ContextBroadcasting,
    DeepAttention,
    GatedPositionalAttention,
    HeadMixing,
    ReAttention,
    RefinedAttention,
    SharedAttention,
    SqueezeExcitation,
    TalkingHeadsAttention,
    Temperature,
    TokenMixing,
    UniformHeads,
)

IMAGES = numbers((2, 16, 16, 3))
CROSSINGS = {
    "re_attention in ConViT": (
        "ConViT",
        lambda i: (
            GatedPositionalAttention(4, on_weights=[ReAttention()])
            if i < 2
            else DeepAttention(4, map_scale=0.5)
        ),
        None,
    ),
    "context broadcasting in CaiT": (
        "CaiT",
        None,
        lambda i: MLP(4.0, on_output=[ContextBroadcasting()]),
    ),
    "shared maps in ViT": (
        "ViT",
        lambda i: SharedAttention(2, on_weights=[HeadMixing()]) if i else Attention(2),
        None,
    ),
    "refinement in PiT": (
        "PiT",
        lambda i: RefinedAttention(2, expansion=2, reduction=False),
        lambda i: MLP(2.0, on_hidden=[SqueezeExcitation(2)]),
    ),
    "talking heads in DeepViT": (
        "DeepViT",
        lambda i: TalkingHeadsAttention(2, on_input=[ContextBroadcasting(scale=0.1)]),
        None,
    ),
    "temperature in RefinedViT": (
        "RefinedViT",
        lambda i: (
            AccumulatingAttention(2, on_logits=[Temperature(2.0, learnable=True)])
            if i
            else Attention(2, on_logits=[Temperature(2.0)])
        ),
        None,
    ),
    "uniform heads in CBViT": (
        "CBViT",
        lambda i: Attention(1, head_size=4, on_weights=[UniformHeads(1)]),
        None,
    ),
    "attention in Mixer": (
        "Mixer",
        lambda i: DeepAttention(2) if i else TokenMixing(4),
        lambda i: MLP(2.0, on_input=[ContextBroadcasting("max")]),
    ),
}
CROSSINGS |= {
    f"talking heads in {family}": (family, lambda i: TalkingHeadsAttention(2), None)
    for family in FAMILIES
    if family not in [family for family, *_ in CROSSINGS.values()]
}
CROSSINGS_HERE = (
    tuple(CROSSINGS) if BACKEND == "torch" else ("re_attention in ConViT", "shared maps in ViT")
)


@pytest.mark.parametrize("case", CROSSINGS_HERE)
def test_crossings(case, tmp_path):
    family, attention, mlp = CROSSINGS[case]
    model = FAMILIES[family](attention=attention, mlp=mlp, drop_path=0.0)
    randomize(model)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    loss = model.train_on_batch(IMAGES, np.array([0, 1]))
    assert np.isfinite(loss)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    close(array(loaded(IMAGES)), array(model(IMAGES)), 1e-6)
