"""`kv.fuse`: the folded model equals the model."""

from functools import partial

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, GOLDEN_CASES, array, close, numbers, precision, randomize
from hypothesis import given
from hypothesis import strategies as st

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    Attention,
    GatedPositionalAttention,
    HeadMixing,
    LocalMapConvolution,
    ReAttention,
    ResidualRefinement,
)
from keras_vitx.layers.maps import MapNormalization


def norms(model):
    """The normalizations over maps; those of a convolutional stem have the last axis."""
    batch = (each for each in sublayers(model) if isinstance(each, keras.layers.BatchNormalization))
    return [each for each in batch if each.axis == 1]


def fused_equally(model, norms_left=0, scale=0.5, variance=1.0):
    """Fuse a model with random weights, check its outputs and return it."""
    randomize(model, scale)
    for norm in norms(model):
        norm.moving_variance.assign(norm.moving_variance * variance)
    before = model.get_weights()
    images = numbers((2, *model.input_shape[1:]))
    fused = kv.fuse(model)
    close(array(fused(images, training=False)), array(model(images, training=False)), 1e-5)
    np.testing.assert_equal(model.get_weights(), before)
    assert len(norms(fused)) == norms_left
    return fused


CASES = {
    **FAMILIES,
    "deepvit_s": GOLDEN_CASES["deepvit_s"],
    "a stem, not square": partial(FAMILIES["DeepViT"], conv_stem=True, input_shape=(32, 16, 3)),
    "a stem, dense head": partial(FAMILIES["RefinedViT"], conv_stem=True, dense_head=True),
    "layers over maps in ConViT": partial(
        FAMILIES["ConViT"],
        attention=lambda index: (
            Attention(4) if index == 2 else GatedPositionalAttention(4, on_weights=[ReAttention()])
        ),
    ),
}
WITH_NORMS = ("DeepViT", "RefinedViT")


@pytest.mark.parametrize("name", CASES if BACKEND == "torch" else WITH_NORMS)
def test_any_network_is_equal_and_has_no_norms(name):
    model = CASES[name](classifier_activation=None)
    fused = fused_equally(model)
    if name in FAMILIES:
        assert bool(norms(model)) == (name in WITH_NORMS)
        again = type(fused).from_config(fused.get_config())  # As from a file.
        again.set_weights(fused.get_weights())
        again = kv.fuse(again)
        assert again.get_config() == fused.get_config()
        np.testing.assert_equal(again.get_weights(), fused.get_weights())


def maps(linear):
    """Lists of layers over maps; only a norm after one of `linear` is folded, or inside others."""
    spatial = st.builds(LocalMapConvolution, constraint=st.just("spatial"), grid=st.just((2, 2)))
    others = spatial, st.builds(ReAttention), st.builds(ResidualRefinement, st.integers(1, 2))
    norm = st.builds(MapNormalization, scale=st.booleans(), center=st.booleans())
    return st.lists(st.one_of(*linear, *others, norm, norm), max_size=5)


MIX = st.builds(HeadMixing, st.booleans())
EXPANSION = st.builds(HeadMixing, st.booleans(), heads_out=st.integers(1, 3))
CONVOLUTION = st.builds(LocalMapConvolution, constraint=st.sampled_from((None, "row+column")))


@pytest.mark.backend_free
@given(
    on_logits=maps([MIX, CONVOLUTION]),
    on_weights=maps([MIX, EXPANSION, CONVOLUTION]),
    scale=st.floats(0.1, 1.0),
    variance=st.floats(0.1, 10),
)
def test_any_layers_over_maps_with_any_statistics(on_logits, on_weights, scale, variance):
    norms_left = 0
    for layers in (on_logits, on_weights):
        folds = False
        for layer in layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                norms_left += not folds
            else:
                folds = isinstance(layer, (HeadMixing, LocalMapConvolution))
                folds = folds and getattr(layer, "constraint", None) != "spatial"
    attention = Attention(2, on_logits=on_logits, on_weights=on_weights)
    model = FAMILIES["ViT"](attention=lambda _: attention, depth=1, classifier_activation=None)
    fused_equally(model, norms_left, scale, variance)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", WITH_NORMS)
def test_mixed_precision_is_folded_in_one_precision(name):
    model = FAMILIES[name](classifier_activation=None)
    with precision("mixed_bfloat16"):
        mixed = FAMILIES[name](classifier_activation=None)
    randomize(model)
    mixed.set_weights(model.get_weights())
    for weight, twin in zip(kv.fuse(mixed).weights, kv.fuse(model).weights, strict=True):
        assert (array(weight) == array(twin)).all(), weight.path
    images = numbers((2, *model.input_shape[1:]))
    close(array(kv.fuse(mixed)(images)), array(mixed(images)), 0.05)


@pytest.mark.backend_free
def test_lora_is_merged():
    model = FAMILIES["CaiT"](layer_scale=0.5)
    for layer in (model.blocks[0].attention.qkv, model.blocks[0].mlp.fc2, model.get_layer("head")):
        layer.enable_lora(2)
    model.get_layer("patch_embed").proj.enable_lora(2)
    fused = fused_equally(model)
    assert not any("lora" in weight.path for weight in fused.weights)
    plain = kv.fuse(FAMILIES["CaiT"](layer_scale=0.5))
    assert fused.get_config() == {**plain.get_config(), "name": fused.name}


class Custom(keras.layers.Layer):
    """An attention with children without a name."""

    def build(self, input_shape):
        self.inner = [keras.layers.Dense(input_shape[-1]) for _ in range(2)]
        for layer in self.inner:
            layer.build(input_shape)

    def call(self, x):
        return self.inner[1](self.inner[0](x))


class Tuned(ReAttention):
    """A subclass with a formula of its own."""

    def call(self, maps, training=False):
        return self.var_norm(self.reatten_matrix(maps), training=training) ** 2


@pytest.mark.backend_free
def test_custom_layers_stay():
    model = FAMILIES["ViT"](
        attention=lambda index: Attention(2, on_weights=[Tuned()]) if index else Custom(),
        mlp=lambda index: MLP() if index else keras.Sequential([keras.layers.Dense(8)]),
    )
    fused_equally(model, norms_left=1)
