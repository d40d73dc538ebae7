"""Checkpoints written by timm, of every family that it has: logits at full size, on other grids."""

import numpy as np
import pytest
from harness import BACKEND, array, close, numbers, same_weights

import keras_vitx as kv
from keras_vitx.weights import save_safetensors, to_checkpoint

# Of names and shapes, alike on every backend; the golden files compare the arithmetic on each.
pytestmark = pytest.mark.backend_free

TOKEN, TWO = {"distillation_token": True}, {"depth": 2}
DINOV2 = {**TWO, "img_size": 224, "num_classes": 1000}
# Ours, arguments of timm and of ours, and the number of position embeddings before the patches,
# None where another grid says nothing more.
PAPERS = {
    "cait_xxs24_224": (kv.CaiT_XXS24, {}, {}, 0),
    "convit_tiny": (kv.ConViT_Ti, TWO | {"local_up_to_layer": 1}, TWO | {"local_depth": 1}, 0),
    "deit_tiny_patch16_224": (kv.ViT_Ti, {}, {}, 1),
    "deit_tiny_distilled_patch16_224": (kv.ViT_Ti, TWO, TWO | TOKEN, 2),
    "deit3_small_patch16_224": (kv.DeiT3_S, TWO, TWO, None),
    "vit_small_patch14_dinov2": (kv.DINOv2_S, DINOV2, TWO, None),
    "vit_small_patch14_reg4_dinov2": (kv.DINOv2_S_Reg, DINOV2, TWO, None),
    "pit_b_distilled_224": (kv.PiT_B, {"depth": (1, 1, 1)}, {"depths": (1, 1, 1)} | TOKEN, 0),
    "mixer_s16_224": (kv.Mixer_S16, {}, {}, None),
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

    images = numbers((2, *size, 3))
    with torch.no_grad():
        expected = theirs(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    close(array(ours(images, training=False)), expected)


@pytest.mark.parametrize("name", PAPERS)
def test_logits_and_names_and_another_grid(timm, written, name):
    constructor, in_timm, in_ours, prefix = PAPERS[name]
    theirs, path = written(name, **in_timm)
    own = {"weights": path, "classifier_activation": None, **in_ours}
    ours = constructor(input_shape=(224, 224, 3), **own)
    check_logits(ours, theirs, (224, 224))
    found, state = to_checkpoint(ours), dict(theirs.state_dict())
    assert found.keys() == {key for key in state if not key.endswith("rel_indices")}
    for key, values in found.items():
        np.testing.assert_array_equal(values, state[key].numpy(), err_msg=key)
    if prefix is None:
        return

    # timm's ConViT computes distances only for square grids.
    size = (256, 256) if name.startswith("convit") else (256, 192)
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
    check_logits(constructor(input_shape=(*size, 3), **own), theirs, size)


HEADLESS = {"include_top": False}
TODAY = {
    "vit_small_patch16_rope_224": (kv.RoPEViT_S, {}),
    "vit_small_patch16_rope_mixed_ape_224": (kv.RoPEViT_S_Mixed_APE, {}),
    "vit_small_patch16_dinov3": (kv.DINOv3_S, HEADLESS | {"pooling": "avg"}),
    "vit_small_plus_patch16_dinov3_qkvb": (
        kv.DINOv3_S_Plus,
        HEADLESS | {"pooling": "avg", "qkv_bias": "qv"},
    ),
    "eva02_tiny_patch14_224": (kv.EVA02_Ti, HEADLESS | {"pooling": "avg"}),
    "eva02_base_patch14_224": (kv.EVA02_B, HEADLESS | {"pooling": "avg"}),
    "vit_base_patch16_siglip_gap_224": (kv.SigLIP2_B_GAP, HEADLESS | {"pooling": "avg"}),
    "vit_base_patch16_siglip_224": (kv.SigLIP2_B, HEADLESS | {"pooling": "attention"}),
    "vit_so400m_patch16_siglip_256": (kv.SigLIP2_SO400M_16, HEADLESS | {"pooling": "attention"}),
}


@pytest.mark.parametrize("name", TODAY)
def test_todays_backbones(written, name):
    import torch

    constructor, arguments = TODAY[name]
    theirs, path = written(name, **TWO, **({"num_classes": 0} if arguments else {}))
    side = theirs.patch_embed.patch_size[0]
    for size in (theirs.patch_embed.img_size, (3 * side, 5 * side)):
        theirs.set_input_size(size)
        given = TWO | {"input_shape": (*size, 3), "weights": path, "classifier_activation": None}
        ours = constructor(**given | arguments)
        images = torch.tensor(numbers((2, 3, *size))).requires_grad_()
        expected = theirs(images)
        (slope,) = torch.autograd.grad(expected.square().sum(), images)
        channels_last = images.detach().permute(0, 2, 3, 1)
        if BACKEND != "torch":
            found = ours(channels_last.numpy(), training=False)
        else:
            found = ours(channels_last.requires_grad_(), training=False)
            (found_slope,) = torch.autograd.grad(found.square().sum(), channels_last)
            close(found_slope.permute(0, 3, 1, 2).numpy(), slope.numpy())
        close(array(found), expected.detach().numpy())
        assert to_checkpoint(ours).keys() == theirs.state_dict().keys()
        save_safetensors(ours, path.with_name("ours.safetensors"))
        same_weights(
            constructor(**given | arguments | {"weights": path.with_name("ours.safetensors")}), ours
        )
        if size == theirs.patch_embed.img_size and "rope" in name:
            tokens = constructor(**given | arguments | HEADLESS)
            close(
                array(tokens(channels_last.detach().numpy())),
                theirs.forward_features(images).detach().numpy(),
            )


def test_context_broadcasting_starts_from_deit(written):
    _, path = written("deit_tiny_patch16_224", **TWO)
    same_weights(kv.ViT_Ti(weights=path, **TWO), kv.CBViT_Ti(weights=path, **TWO))


@pytest.mark.parametrize("channels", (1, 2, 7))
def test_other_channels_as_timm_has_them(timm, written, channels):
    theirs, path = written("deit_tiny_patch16_224", depth=1)
    kernel = theirs.state_dict()["patch_embed.proj.weight"]
    kernel = timm.models._manipulate.adapt_input_conv(channels, kernel)
    model = kv.ViT_Ti(weights=path, depth=1, input_shape=(224, 224, channels))
    expected = kernel.permute(2, 3, 1, 0).numpy()
    np.testing.assert_allclose(array(model.weights[0].value), expected, rtol=1e-6, atol=1e-7)
    assert len(model.preprocessing.mean) == channels
