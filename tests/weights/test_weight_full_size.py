"""Checkpoints written by timm: at full size, on other grids, and of other channels."""

import keras
import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx.weights import to_checkpoint

# Of names and shapes, alike on every backend; the golden files compare the arithmetic on each.
pytestmark = pytest.mark.backend_free

TOKEN = {"distillation_token": True}
FULL_SIZE = {
    "cait_xxs24_224": (kv.CaiT_XXS24, {}),
    "convit_tiny": (kv.ConViT_Ti, {}),
    "deit_tiny_patch16_224": (kv.ViT_Ti, {}),
    "deit_tiny_distilled_patch16_224": (kv.ViT_Ti, TOKEN),
    "pit_b_224": (kv.PiT_B, {}),
    "mixer_s16_224": (kv.Mixer_S16, {}),
}
# Arguments of timm and of ours, and the number of position embeddings before the patches.
TWO = {"depth": 2}
OTHER_GRIDS = {
    "cait_xxs24_224": (kv.CaiT_XXS24, TWO, TWO, 0),
    "convit_tiny": (
        kv.ConViT_Ti,
        {"depth": 3, "local_up_to_layer": 2},
        {"depth": 3, "local_depth": 2},
        0,
    ),
    "deit_tiny_patch16_224": (kv.ViT_Ti, TWO, TWO, 1),
    "deit_tiny_distilled_patch16_224": (kv.ViT_Ti, TWO, {**TWO, **TOKEN}, 2),
    "pit_b_distilled_224": (kv.PiT_B, {"depth": (1, 1, 1)}, {"depths": (1, 1, 1), **TOKEN}, 0),
}


@pytest.fixture
def written(timm, tmp_path):
    """Write a checkpoint in which every parameter affects the output; return its model and path."""
    import torch
    from safetensors.torch import save_file

    def write(name, **arguments):
        model = timm.create_model(name, pretrained=False, **arguments).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(generator=generator)
                parameter.mul_(parameter[0].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.2)
                if "norm" in name and name.endswith("weight"):
                    parameter.add_(1.0)
        save_file(model.state_dict(), tmp_path / "model.safetensors")
        return model, tmp_path / "model.safetensors"

    return write


def check_logits(ours, theirs, size):
    import torch

    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    found = keras.ops.convert_to_numpy(ours(images, training=False))
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_full_size_model_and_back(written, name):
    theirs, path = written(name)
    constructor, arguments = FULL_SIZE[name]
    ours = constructor(weights=path, classifier_activation=None, **arguments)
    check_logits(ours, theirs, (224, 224))
    found, state = to_checkpoint(ours), theirs.state_dict()
    assert found.keys() == {key for key in state if not key.endswith("rel_indices")}
    for key, array in found.items():
        np.testing.assert_array_equal(array, state[key].numpy(), err_msg=key)


@pytest.mark.parametrize("name", OTHER_GRIDS)
def test_logits_on_another_grid(timm, written, name):
    # timm's ConViT computes distances only for square grids.
    size = (256, 256) if name.startswith("convit") else (256, 192)
    constructor, in_timm, in_ours, prefix = OTHER_GRIDS[name]
    theirs, path = written(name, **in_timm)
    state = dict(theirs.state_dict())
    theirs = timm.create_model(name, img_size=size, **in_timm).eval()
    wanted = theirs.state_dict()["pos_embed"].shape
    positions = state["pos_embed"]
    grid, old = [side // 16 for side in size], [14, 14]
    if is_map := positions.ndim == 4:
        grid, old = list(wanted[2:]), list(positions.shape[2:])
        positions = positions.flatten(2).transpose(1, 2)
    positions = timm.layers.resample_abs_pos_embed(positions, grid, old, num_prefix_tokens=prefix)
    state["pos_embed"] = positions.transpose(1, 2).reshape(wanted) if is_map else positions
    theirs.load_state_dict(state)
    ours = constructor(weights=path, input_shape=(*size, 3), classifier_activation=None, **in_ours)
    check_logits(ours, theirs, size)


def test_context_broadcasting_starts_from_deit(written):
    _, path = written("deit_tiny_patch16_224", depth=2)
    plain = kv.ViT_Ti(weights=path, depth=2)
    broadcasting = kv.CBViT_Ti(weights=path, depth=2)
    for one, other in zip(plain.weights, broadcasting.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))


@pytest.mark.parametrize("channels", (1, 2, 4, 7))
def test_other_channels_as_timm_has_them(timm, written, channels):
    theirs, path = written("deit_tiny_patch16_224", depth=1)
    kernel = theirs.state_dict()["patch_embed.proj.weight"]
    kernel = timm.models._manipulate.adapt_input_conv(channels, kernel)
    model = kv.ViT_Ti(weights=path, depth=1, input_shape=(224, 224, channels))
    found = keras.ops.convert_to_numpy(model.weights[0])
    np.testing.assert_allclose(found, kernel.permute(2, 3, 1, 0).numpy(), rtol=1e-6, atol=1e-7)
    assert len(model.preprocessing.mean) == channels
