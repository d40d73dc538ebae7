"""DeepViT files without `var_norm`, the BatchNormalization of re-attention."""

import numpy as np
import pytest
from harness import GOLDEN, array, close
from safetensors.numpy import load_file, save_file

import keras_vitx as kv

SIZE = {
    "dim": 24,
    "depth": 3,
    "num_heads": 4,
    "patch_size": 8,
    "input_shape": (32, 32, 3),
    "classes": 10,
    "classifier_activation": None,
}


@pytest.fixture
def state():
    return load_file(GOLDEN / "deepvit_pure.safetensors")


@pytest.fixture
def stripped(state, tmp_path):
    state = {name: tensor for name, tensor in state.items() if "var_norm" not in name}
    save_file(state, tmp_path / "stripped.safetensors")
    return tmp_path / "stripped.safetensors"


def test_the_argument_is_named(stripped):
    with pytest.raises(ValueError, match="normalize_maps=False"):
        kv.DeepViT(**SIZE, weights=stripped)
    with pytest.raises(ValueError, match="normalize_maps=True"):
        kv.DeepViT(**SIZE, normalize_maps=False, weights=GOLDEN / "deepvit_pure.safetensors")


def test_the_file_loads_without_normalization(state, stripped, tmp_path):
    # The same network with normalizations that change nothing.
    values = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1 - 1e-5}
    for name in state:
        if "var_norm" in name and (value := values.get(name.rpartition(".")[2])) is not None:
            state[name] = np.full_like(state[name], value)
    save_file(state, tmp_path / "identity.safetensors")
    images = np.load(GOLDEN / "deepvit_pure.npz")["input"]
    expected = array(kv.DeepViT(**SIZE, weights=tmp_path / "identity.safetensors")(images))
    model = kv.DeepViT(**SIZE, normalize_maps=False, weights=stripped)
    for training in (False, True):
        close(array(model(images, training=training)), expected)
    shared = kv.DeepViT(**SIZE, normalize_maps=False, shared_depth=1)
    assert not any("var_norm" in variable.path for variable in (*model.weights, *shared.weights))
    model.save(tmp_path / "m.keras")
    close(array(kv.load(tmp_path / "m.keras")(images)), expected)
