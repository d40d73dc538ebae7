"""DeepViT files without `var_norm`, the BatchNormalization of re-attention."""

from math import erf, sqrt

import numpy as np
import pytest
from harness import GOLDEN, array, close
from safetensors.numpy import load_file, save_file

import keras_vitx as kv

DIM, HEADS, PATCH = 24, 4, 8
SIZE = {
    "dim": DIM,
    "depth": 3,
    "num_heads": HEADS,
    "patch_size": PATCH,
    "input_shape": (32, 32, 3),
    "classes": 10,
    "classifier_activation": None,
}


def deepvit(images, state):
    """Compute a DeepViT's logits in NumPy from the tensors of its checkpoint."""

    def dense(x, name):
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def re_attention(maps, name):
        mix = state[f"{name}.reatten_matrix.weight"][:, :, 0, 0]
        maps = np.einsum("gh,bhqk->bgqk", mix, maps)
        maps = maps + state[f"{name}.reatten_matrix.bias"][:, None, None]
        if f"{name}.var_norm.weight" not in state:
            return maps
        gamma, beta, mean, variance = (
            state[f"{name}.var_norm.{part}"][:, None, None]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return gamma * (maps - mean) / np.sqrt(variance + 1e-5) + beta

    def attention(x, name):
        batch, tokens, _ = x.shape
        q, k, v = (
            part.reshape(batch, tokens, HEADS, -1).swapaxes(1, 2)
            for part in np.split(dense(x, f"{name}.qkv"), 3, axis=-1)
        )
        maps = np.exp(q @ k.swapaxes(2, 3) / sqrt(DIM // HEADS))
        maps = re_attention(maps / maps.sum(-1, keepdims=True), name)
        return dense((maps @ v).swapaxes(1, 2).reshape(x.shape), f"{name}.proj")

    def mlp(x, name):
        x = dense(x, f"{name}.fc1")
        return dense(x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2, f"{name}.fc2")

    batch, side = len(images), images.shape[1] // PATCH
    patches = images.reshape(batch, side, PATCH, side, PATCH, 3).transpose(0, 1, 3, 5, 2, 4)
    kernel = state["patch_embed.proj.weight"].reshape(DIM, -1)
    x = patches.reshape(batch, side**2, -1) @ kernel.T + state["patch_embed.proj.bias"]
    x = np.concatenate([np.tile(state["cls_token"], (batch, 1, 1)), x], axis=1)
    x = x + state["pos_embed"]
    for block in (f"blocks.{i}" for i in range(3)):
        x = x + attention(norm(x, f"{block}.norm1"), f"{block}.attn")
        x = x + mlp(norm(x, f"{block}.norm2"), f"{block}.mlp")
    return dense(norm(x, "norm")[:, 0], "head")


@pytest.fixture
def stripped(tmp_path):
    state = load_file(GOLDEN / "deepvit_pure.safetensors")
    state = {name: tensor for name, tensor in state.items() if "var_norm" not in name}
    save_file(state, tmp_path / "stripped.safetensors")
    return tmp_path / "stripped.safetensors"


@pytest.mark.backend_free
def test_the_reference_is_the_public_model():
    golden = np.load(GOLDEN / "deepvit_pure.npz")
    logits = deepvit(golden["input"], load_file(GOLDEN / "deepvit_pure.safetensors"))
    close(logits, golden["logits"])


def test_the_argument_is_named(stripped):
    with pytest.raises(ValueError, match=r"no normalization.*normalize_maps=False"):
        kv.DeepViT(**SIZE, weights=stripped)
    with pytest.raises(ValueError, match=r"a normalization.*normalize_maps=True"):
        kv.DeepViT(**SIZE, normalize_maps=False, weights=GOLDEN / "deepvit_pure.safetensors")


def test_the_file_loads_without_normalization(stripped, tmp_path):
    images = np.load(GOLDEN / "deepvit_pure.npz")["input"]
    expected = deepvit(images, load_file(stripped))
    model = kv.DeepViT(**SIZE, normalize_maps=False, weights=stripped)
    for training in (False, True):
        close(array(model(images, training=training)), expected)
    shared = kv.DeepViT(**SIZE, normalize_maps=False, shared_depth=1)
    assert not any("var_norm" in variable.path for variable in (*model.weights, *shared.weights))
    model.save(tmp_path / "m.keras")
    close(array(kv.load(tmp_path / "m.keras")(images)), expected)
