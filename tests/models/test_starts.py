"""Initial weights of every family: deviation and largest value of every kind of parameter."""

import re
from collections import defaultdict
from functools import partial
from operator import attrgetter

import keras
import numpy as np
import pytest
from harness import array
from safetensors.numpy import save_file

import keras_vitx as kv
from keras_vitx.layers import PositionalAttention

# The starts of layers are tested on each backend (tests/layers/test_layers.py).
pytestmark = pytest.mark.backend_free
COMMON = {"patch_size": 8, "input_shape": (64, 64, 3), "classes": 100}
TIMM = {"img_size": 64, "patch_size": 8, "num_classes": 100}
SMALL, SAME = (96, 3, 4), {"embed_dim": 96, "depth": 3, "num_heads": 4}
PIT = dict(stem_type="overlap", base_dims=[24, 24], depth=[2, 2], heads=[2, 4], mlp_ratio=4)
# Ours, and timm's module, class and arguments.
PEERS = {
    "ViT": (partial(kv.ViT, *SMALL), "vision_transformer.VisionTransformer", SAME),
    "ViT/distilled": (
        partial(kv.ViT, *SMALL, distillation_token=True),
        "deit.VisionTransformerDistilled",
        SAME,
    ),
    "CaiT": (partial(kv.CaiT, *SMALL, layer_scale=1e-4), "cait.Cait", SAME),
    # Six heads: two are left over by the kernel of 2 x 2. timm's width is that of a head.
    "ConViT": (
        partial(kv.ConViT, 96, 3, 6, local_depth=2, conv_start="partial"),
        "convit.ConVit",
        {"embed_dim": 16, "depth": 3, "num_heads": 6, "local_up_to_layer": 2},
    ),
    "PiT/distilled": (
        partial(kv.PiT, (48, 96), (2, 2), (2, 4), distillation_token=True, stride=8),
        "pit.PoolingVisionTransformer",
        {"stride": 8, "distilled": True, **PIT},
    ),
    "Mixer": (partial(kv.Mixer, 96, 3), "mlp_mixer.MlpMixer", {"embed_dim": 96, "num_blocks": 3}),
}
# timm starts a ViT's class token at 1e-6; DeiT, at .02 like the others.
OTHER = {"ViT": {"cls_token/token"}, "ViT/distilled": {"cls_token/token"}}


def kinds(model):
    """The values of the variables by name, those of all blocks together."""
    found = defaultdict(list)
    for variable in model.trainable_variables:
        name = re.sub(r"\d+", "*", variable.path.removeprefix(f"{model.name}/"))
        found[name].append(array(variable.value).ravel())
    return {name: np.concatenate(values) for name, values in found.items()}


@pytest.mark.parametrize("name", PEERS)
def test_starts_are_those_of_timm(timm, name, tmp_path):
    import torch

    make, address, arguments = PEERS[name]
    torch.manual_seed(0)
    theirs = attrgetter(address)(timm.models)(**TIMM, **arguments)
    state = {key: value.contiguous().numpy() for key, value in theirs.state_dict().items()}
    save_file(state, tmp_path / "theirs.safetensors")
    made = (make(**COMMON, **w) for w in ({}, {"weights": str(tmp_path / "theirs.safetensors")}))
    ours, theirs = map(kinds, made)
    for kind in ours.keys() - OTHER.get(name, set()):
        found, expected = ours[kind], theirs[kind]
        if expected.std() < 1e-9:
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=kind)
            continue
        assert abs(np.log(found.std() / expected.std())) < 5 / len(found) ** 0.5, kind
        # How far the largest values of two samples of a normal distribution may be apart.
        limit = 1.35 if len(found) > 1000 else 2.0
        assert 1 / limit < np.abs(found).max() / np.abs(expected).max() < limit, kind


@pytest.mark.parametrize("zero", (True, False))
def test_positional_attention_learns_content_unless_it_starts_at_zero(zero):
    """Equation 5 to the letter: queries and keys are each other's gradient."""
    model = kv.ConViT(
        32, 2, 4, local_depth=2, attention=lambda i: PositionalAttention(4, zero_content=zero),
        pooling="avg", **COMMON,
    )  # fmt: skip
    kernel = model.get_layer("blocks_0").attention.qk.kernel
    before = array(kernel.value).copy()
    assert (not before.any()) == zero
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy")
    images = np.random.default_rng(0).normal(size=(4, *model.input_shape[1:]))
    model.train_on_batch(images, np.arange(4))
    assert (array(kernel.value) == before).all() == zero
