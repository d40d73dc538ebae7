"""Checkpoints written by the public implementation, one of full size."""

import keras
import numpy as np
import pytest

import keras_vitx as kv


def written(timm, path, **arguments):
    """Write a checkpoint in which every parameter matters; return its model."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    model = timm.create_model("cait_xxs24_224", pretrained=False, **arguments).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(generator=generator)
            parameter.mul_(parameter[0].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.2)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    save_file(model.state_dict(), path)
    return model


def check_logits(ours, theirs, size):
    import torch

    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    found = keras.ops.convert_to_numpy(ours(images, training=False))
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


def test_logits_of_a_full_size_model(timm, tmp_path):
    path = tmp_path / "cait.safetensors"
    theirs = written(timm, path)
    ours = kv.CaiT_XXS24(weights=str(path), classifier_activation=None)
    check_logits(ours, theirs, (224, 224))


def test_logits_on_another_grid(timm, tmp_path):
    path = tmp_path / "cait.safetensors"
    state = dict(written(timm, path, depth=2).state_dict())
    state["pos_embed"] = timm.layers.resample_abs_pos_embed(
        state["pos_embed"], [16, 12], num_prefix_tokens=0
    )
    theirs = timm.create_model("cait_xxs24_224", depth=2, img_size=(256, 192)).eval()
    theirs.load_state_dict(state)
    ours = kv.CaiT_XXS24(
        weights=str(path), depth=2, input_shape=(256, 192, 3), classifier_activation=None
    )
    check_logits(ours, theirs, (256, 192))
