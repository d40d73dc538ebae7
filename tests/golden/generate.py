"""Make golden files from the public PyTorch implementations.

    python tests/golden/generate.py OUT [CASE ...] [--dvit PATH] [--refiner PATH]

Requires torch and timm 1.0.31 and, for the DeepViT and Refined-ViT cases, checkouts of
github.com/zhoudaquan/dvit_repo and of github.com/zhoudaquan/Refiner_ViT (commit
b3e8cb0). Without CASE, the cases of timm are made. The README.md of this directory describes
the files. Their weights are random and differ from those of the files stored here.
"""

import argparse
import importlib
import sys
import types
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

# Without this, a CUDA build of torchvision does not import with a CPU build of torch.
sys.modules.setdefault(
    "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
)

from timm.layers import GluMlp, RmsNorm  # noqa: E402

COMMON = {"img_size": 32, "num_classes": 10}
SMALL = {**COMMON, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 4}
THREE = {**SMALL, "num_heads": 3}
RELEASED = {"mlp_ratio": 3, "qkv_bias": True, "norm_layer": partial(torch.nn.LayerNorm, eps=1e-6)}
CHECKOUTS = {}
"""Paths of the checkouts, by the option that names them."""


class Broadcasting(torch.nn.Module):
    """An MLP followed by Context Broadcasting."""

    def __init__(self, mlp):
        super().__init__()
        self.fc1, self.act, self.fc2 = mlp.fc1, mlp.act, mlp.fc2

    def forward(self, x):
        x = self.fc2(self.act(self.fc1(x)))
        return (x + x.mean(dim=1, keepdim=True)) / 2


def timm(module, kind, **options):
    """Return a function that makes a model of timm."""
    return lambda: getattr(importlib.import_module(f"timm.models.{module}"), kind)(**options)


def cb_vit():
    model = TIMM["vit"]()
    for block in model.blocks:
        block.mlp = Broadcasting(block.mlp)
    return model


def deepvit(re_attention, **options):
    def make():
        kind = from_checkout("dvit", "models.deep_vision_transformer").DeepVisionTransformer
        applied = [False] * (3 - re_attention) + [True] * re_attention
        listed = {**RELEASED, "depth": [False] * 3, "apply_transform": applied}
        return kind(**SMALL | listed, **options)

    return make


def refined_vit(dense):
    def make():
        kind = from_checkout("refiner", "models.refined_transformer").Refiner_ViT
        # Every other block shares the maps of the one before it.
        listed = {**RELEASED, "depth": [False, True] * 2, "apply_transform": [False] * 4}
        return kind(**SMALL | listed, head_expand=6, mix_token=False, return_dense=dense)

    return make


def from_checkout(repository, module):
    """Import a module of a checkout. Both checkouts have a package of the same name."""
    if repository not in CHECKOUTS:
        raise SystemExit(f"--{repository}: the path of its checkout is needed for this case.")
    for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
        del sys.modules[name]
    # Last in the path, because the checkouts also have a directory named timm.
    sys.path.append(CHECKOUTS[repository])
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(CHECKOUTS[repository])


VIT = "vision_transformer", "VisionTransformer"
DEIT3 = {**THREE, "no_embed_class": True}
ROTARY = {**THREE, "use_rot_pos_emb": True}
ROPE = {"attn_type": "rope", "rope_grid_indexing": "xy", "rope_temperature": 100.0}
DINOV3 = {"rope_type": "dinov3", "rope_rotate_half": True, "num_reg_tokens": 4, "qkv_bias": False}
DINOV3 |= {"rope_temperature": 100.0, "use_abs_pos_emb": False}
DINOV3 |= {"norm_layer": partial(torch.nn.LayerNorm, eps=1e-5), "use_fc_norm": False}
EVA02 = {"mlp_ratio": 8 / 3, "swiglu_mlp": True, "ref_feat_shape": (6, 6)}
QUICK = "quick_gelu"
CLIP = {"pre_norm": True, "act_layer": QUICK, "norm_layer": partial(torch.nn.LayerNorm, eps=1e-5)}
GAP = {"global_pool": "avg", "fc_norm": True, "init_values": 1e-5}
GATED = partial(GluMlp, gate_last=False)
AIMV2 = {"class_token": False, "fc_norm": False, "global_pool": "avg", "act_layer": "silu"}
AIMV2 |= {"qkv_bias": False, "proj_bias": False, "mlp_layer": GATED, "mlp_ratio": 6}
AIMV2 |= {"norm_layer": partial(RmsNorm, eps=1e-5), "embed_norm_layer": partial(RmsNorm, eps=1e-5)}
PE = {"attn_type": "rope", "use_pre_transformer_norm": True, "global_pool": "map"}
PE |= {"attn_pool_num_heads": 4, "attn_pool_mlp_ratio": 4.0, "rope_grid_offset": 1.0}
PE |= {"rope_grid_indexing": "xy", "ref_feat_shape": (6, 6), "use_fc_norm": False}
BEIT = {"use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1}
PIT = {"base_dims": (12, 12), "depth": (1, 2), "heads": (2, 4), "patch_size": 8, "stride": 7}
TIMM = {
    "cait": timm("cait", "Cait", **SMALL),
    # The width is that of a head.
    "convit": timm("convit", "ConVit", **{**SMALL, "embed_dim": 6}, local_up_to_layer=2),
    "vit": timm(*VIT, **THREE),
    "deit3": timm(*VIT, **DEIT3, init_values=1e-6),
    "dinov2": timm(*VIT, **DEIT3, init_values=1e-5, reg_tokens=4),
    "siglip": timm(*VIT, **THREE, class_token=False, global_pool="map"),
    "clip": timm(*VIT, **THREE, **CLIP),
    "gap": timm(*VIT, **THREE, class_token=False, reg_tokens=2, no_embed_class=True, **GAP),
    "aimv2": timm(*VIT, **THREE, **AIMV2),
    "beit3": timm(*VIT, **THREE, scale_attn_norm=True, scale_mlp_norm=True, global_pool="avg"),
    "beit": timm("beit", "Beit", **THREE, **BEIT),
    "pe_core": timm("eva", "Eva", **ROTARY, **PE),
    "rope_vit": timm(
        *("eva", "Eva"),
        **ROTARY,
        **ROPE,
        init_values=1e-5,
        global_pool="token",
        no_embed_class=True,
    ),
    "dinov3": timm("eva", "Eva", **ROTARY, **DINOV3, init_values=1e-5, global_pool="token"),
    "eva02": timm("eva", "Eva", **ROTARY, **EVA02),
    "cb_vit": cb_vit,
    "deit_distilled": timm("deit", "VisionTransformerDistilled", **THREE),
    "mixer": timm("mlp_mixer", "MlpMixer", **COMMON, patch_size=8, embed_dim=24, num_blocks=3),
    "pit": timm("pit", "PoolingVisionTransformer", **COMMON, **PIT),
}
CASES = {
    **TIMM,
    "deepvit_pure": deepvit(3),
    "deepvit_s": deepvit(2, transform_scale=True, scale_adjustment=0.5, use_cnn_embed=True),
    "deepvit_l": deepvit(1, scale_adjustment=0.5, use_cnn_embed=True),
    "refined_vit": refined_vit(dense=False),
    "refined_vit_dense": refined_vit(dense=True),
}


def randomize(model):
    """Randomize every parameter and running statistic so that each affects the output."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point() or name.endswith("rel_indices"):
                continue
            noise = torch.randn_like(tensor)
            if name.endswith("running_var"):
                tensor.copy_(noise.abs() + 0.5)
            elif name.rpartition(".")[2].startswith(("gamma", "scale_channel")):
                tensor.copy_(0.3 + 0.1 * noise)
            elif tensor.ndim < 2:
                tensor.add_(0.1 * noise)
            else:
                tensor.copy_(noise / max(tensor[0].numel(), 1) ** 0.5)


def measured(model):
    """Return the outputs of the model, as described in README.md."""
    images = torch.randn(4, 32, 32, 3)
    x, labels = images.permute(0, 3, 1, 2), torch.arange(4)
    results = {"input": images, "labels": labels}
    hooks = [
        module.register_forward_hook(_recorder(results, f"block/{name}"))
        for name, module in model.named_modules()
        if hasattr(module, "norm1") and hasattr(module, "norm2")  # a block
    ]
    model.eval()
    with torch.no_grad():
        results["logits"] = model(x)
    for hook in hooks:
        hook.remove()
    model.train()
    logits = model(x)
    if isinstance(logits, (tuple, list)):  # of the class head, then of the dense head
        logits = logits[0]
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    results |= {"train/logits": logits, "train/loss": loss}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            pair = parameter.grad.norm(), (parameter.grad * parameter).sum()
            results[f"grad/{name}"] = torch.stack(pair)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            results[f"after/{name}"] = buffer
    return {name: value.detach().numpy() for name, value in results.items()}


def _recorder(results, key):
    def record(module, inputs, output):
        results[key] = (output[0] if isinstance(output, tuple) else output).clone()

    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--dvit", help="checkout of github.com/zhoudaquan/dvit_repo")
    parser.add_argument("--refiner", help="checkout of github.com/zhoudaquan/Refiner_ViT")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    given = {"dvit": arguments.dvit, "refiner": arguments.refiner}
    CHECKOUTS.update({name: path for name, path in given.items() if path})
    arguments.out.mkdir(parents=True, exist_ok=True)
    for case in arguments.cases or TIMM:
        torch.manual_seed(arguments.seed)
        model = CASES[case]()
        randomize(model)
        # A copy: the training pass changes running statistics.
        state = {
            name: value.clone().contiguous()
            for name, value in model.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }
        np.savez(arguments.out / f"{case}.npz", **measured(model))
        save_file(state, arguments.out / f"{case}.safetensors")


if __name__ == "__main__":
    main()
