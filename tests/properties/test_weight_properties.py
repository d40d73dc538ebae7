"""Names and positions, for any model."""

import inspect

import keras
import numpy as np
import pytest
from harness import FAMILIES, FORMATS, randomize, same_weights, save
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import keras_vitx as kv
from keras_vitx.weights import load_weights, resample, to_checkpoint
from keras_vitx.weights.convert import resampled

pytestmark = pytest.mark.backend_free
OPTIONS = {
    "depth": st.integers(1, 3),
    "class_depth": st.integers(0, 2),
    "local_depth": st.integers(0, 2),
    "re_attention_depth": st.integers(0, 2),
    "shared_depth": st.integers(0, 1),
    "register_tokens": st.integers(0, 2),
    "classes": st.integers(1, 12),
    "input_shape": st.sampled_from(((16, 16, 3), (32, 16, 1), (48, 48, 4))),
    "layer_scale": st.sampled_from((None, 1e-5)),
    "map_scale": st.sampled_from((None, "head")),
    "pooling": st.sampled_from((None, "avg")),
    **dict.fromkeys(
        ("conv_stem", "distillation_token", "dense_head", "normalize_maps", "include_top"),
        st.booleans(),
    ),
}


@st.composite
def configured(draw):
    """A family and options of it."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    known = inspect.signature(getattr(kv, family)).parameters
    return family, {name: draw(one) for name, one in OPTIONS.items() if name in known}


@keras.saving.register_keras_serializable(package="tests")
class Unnamed(keras.layers.Layer):
    """A user's MLP, whose layers have the names that Keras gives them."""

    def build(self, shape):
        self.wide, self.narrow = keras.layers.Dense(shape[-1]), keras.layers.Dense(shape[-1])
        self.wide.build(shape)
        self.narrow.build(shape)

    def call(self, x):
        return self.narrow(self.wide(x))


def in_a_name_scope(make):
    with keras.name_scope("outer"), keras.name_scope("inner"):
        return make()


def in_a_build(make):
    class Outer(keras.Model):
        def build(self, shape):
            self.inner = make()

    outer = Outer()
    outer.build((None, 16, 16, 3))
    return outer.inner


PLACES = {
    "alone": lambda make: make(),
    "after another": lambda make: [make(), make()][1],
    "in a name scope": in_a_name_scope,
    "in a build": in_a_build,
}


@settings(max_examples=15)
@given(
    configured(),
    st.booleans(),
    st.sampled_from(list(FORMATS)),
    *[st.sampled_from(sorted(PLACES))] * 2,
)
def test_names_lead_there_and_back(tmp_path_factory, configured, unnamed, form, place, other_place):
    family, options = configured
    if unnamed and family not in ("Mixer", "PiT"):
        options["mlp"] = lambda index: Unnamed()
    try:
        model, other = (
            PLACES[one](lambda: FAMILIES[family](**options)) for one in (place, other_place)
        )
    except ValueError:  # Options that exclude each other.
        reject()
    assert model.weights[0].path.startswith("outer") == place.startswith("in")
    for seed, layer in enumerate(model.layers[1:]):
        randomize(layer, 0.1 + seed / 10)
    path = save(model, tmp_path_factory.mktemp("names") / f"m{form}")
    load_weights(other, path)
    same_weights(other, model)
    assert len(to_checkpoint(model)) == len(model.weights)


@given(*[st.tuples(st.integers(1, 30), st.integers(1, 30))] * 2, st.integers(0, 2))
def test_positions_are_resampled_as_in_timm(timm, old, new, prefix):
    import torch

    entries = np.random.default_rng(0).normal(size=(1, prefix + old[0] * old[1], 5))
    entries = entries.astype("float32")
    expected = timm.layers.resample_abs_pos_embed(
        torch.tensor(entries), list(new), list(old), num_prefix_tokens=prefix
    ).numpy()
    found = resample(entries, old, new, prefix)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0 if old == new else 1e-5)
    np.testing.assert_array_equal(found[:, :prefix], entries[:, :prefix])
    # DeiT's code resamples without antialiasing, for which PyTorch has another kernel.
    patches = torch.tensor(entries[:, prefix:]).reshape(1, *old, -1).permute(0, 3, 1, 2)
    plain = torch.nn.functional.interpolate(patches, new, mode="bicubic", align_corners=False)
    found = resample(entries, old, new, prefix, antialias=False)[:, prefix:]
    np.testing.assert_allclose(found, plain.flatten(2).mT.numpy(), atol=1e-5)


@given(*[st.tuples(st.integers(2, 12), st.integers(2, 12))] * 2)
def test_offsets_are_resampled_as_in_timm(timm, old, new):
    import torch

    count = [(2 * rows - 1) * (2 * columns - 1) + 3 for rows, columns in (old, new)]
    table = np.random.default_rng(0).normal(size=(count[0], 2)).astype("float32")
    expected = timm.layers.resize_rel_pos_bias_table(torch.tensor(table), new, (count[1], 2), old)
    layer = kv.layers.RelativePositionBias(new)
    np.testing.assert_allclose(resampled(layer, table, old), expected.numpy(), atol=1e-5)
