"""Checkpoints of Hugging Face Transformers' ViT, DeiT and DINOv2: names, and files beside them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.weights.description import CONFIG, Description, FileError, parse_json

PREPROCESSOR = "preprocessor_config.json"
IMAGENET = "tench", "toilet tissue"
"""The first and the last of 1,000 classes, which the package names itself, by synsets."""

PATCHES = "embeddings.patch_embeddings.projection.weight"
REGISTERS = "embeddings.register_tokens"

# Whole names, without a prefix such as "vit."; the first match wins. An empty name is of a weight
# that no prediction depends on.
ROWS = (
    (r"embeddings\.(cls)_token", r"\1_token"),
    (r"embeddings\.distillation_token", r"dist_token"),
    (r"embeddings\.register_tokens", r"reg_token"),
    (r"embeddings\.position_embeddings", r"pos_embed"),
    (r"embeddings\.patch_embeddings\.projection\.(.+)", r"patch_embed.proj.\1"),
    (r"(?:embeddings\.mask_token|pooler\..+)", r""),
    (r"layernorm\.(.+)", r"norm.\1"),
    (r"distillation_classifier\.(.+)", r"head_dist.\1"),
    (r"(?:cls_)?classifier\.(.+)", r"head.\1"),
    (r"encoder\.layer\.(\d+)\.attention\.attention\.\w+\.(.+)", r"blocks.\1.attn.qkv.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(.+)", r"blocks.\1.attn.proj.\2"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.(.+)", r"blocks.\1.mlp.fc1.\2"),
    (r"encoder\.layer\.(\d+)\.output\.dense\.(.+)", r"blocks.\1.mlp.fc2.\2"),
    (r"encoder\.layer\.(\d+)\.(?:layernorm_before|norm1)\.(.+)", r"blocks.\1.norm1.\2"),
    (r"encoder\.layer\.(\d+)\.(?:layernorm_after|norm2)\.(.+)", r"blocks.\1.norm2.\2"),
    (r"encoder\.layer\.(\d+)\.layer_scale([12])\.lambda1", r"blocks.\1.ls\2.gamma"),
    (r"encoder\.layer\.(\d+)\.(mlp\..+)", r"blocks.\1.\2"),
)  # fmt: skip
# Parts of one matrix, in timm's order.
PARTS = ("query", "key", "value")


def prefix_of(names: Iterable[str]) -> str | None:
    """Return what precedes the names of Transformers, often empty; None for names of others."""
    return next((name[: -len(PATCHES)] for name in names if name.endswith(PATCHES)), None)


def timm_names(names: Iterable[str], prefix: str) -> dict[str, list[str]]:
    """Return timm's names, each with Transformers' names of its parts along the first axis."""
    joined: dict[str, list[str]] = {}
    for name in sorted(names, key=_part):
        short = name.removeprefix(prefix)
        for pattern, replacement in ROWS:
            if match := re.fullmatch(pattern, short):
                short = match.expand(replacement)
                break
        if short:
            joined.setdefault(short, []).append(name)
    return joined


def _part(name: str) -> int:
    return next((i for i, part in enumerate(PARTS) if f".{part}." in name), 0)


def description_of(directory: Path, model: Any) -> Description:
    """Return what Transformers' files in the directory of a model's weights say of it.

    Raises a FileError if they can't be used, or describe a network of the same weights with other
    heads or another activation.
    """
    config, images = parse_json((directory / CONFIG).read_bytes()), directory / PREPROCESSOR
    mlp = model.blocks[0].mlp if model.blocks else None
    for name, own in {
        "num_attention_heads": model.num_heads,
        "hidden_act": getattr(mlp, "activation", None),
    }.items():
        if name in config and isinstance(own, int | str) and config[name] != own:
            raise FileError(
                f"`{name}` of its {CONFIG} must be that of the model, {own!r}. "
                f"Received: {config[name]!r}."
            )
    try:
        labels = {int(label): str(name) for label, name in (config.get("id2label") or {}).items()}
        names = tuple(labels[label] for label in sorted(labels))
        is_unnamed = all(re.fullmatch(r"LABEL_\d+", name) for name in names)
        is_imagenet = len(names) == 1000 and all(map(str.startswith, names[::999], IMAGENET))
        names = None if is_unnamed or is_imagenet else names
        processor = images.is_file() and parse_json(images.read_bytes())
        preprocessing = _preprocessing(processor) if processor else None
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise FileError(f"{CONFIG} or {PREPROCESSOR} can't be used ({cause:.100}).") from error
    return Description(model.name, None, names, preprocessing)


def _preprocessing(processor: dict[str, Any]) -> Preprocessing:
    """Return that of an image processor, but for an aspect ratio that it does not keep."""
    scale = (
        255 * processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 255
    )
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if processor.get("do_normalize", True):
        mean, std = processor["image_mean"], processor["image_std"]
    mean, std = (tuple(value / scale for value in values) for values in (mean, std))
    ratio = 1.0
    if processor.get("do_center_crop"):
        ratio = _side(processor["crop_size"]) / _side(processor["size"])
    resample = Image.Resampling(processor.get("resample", Image.Resampling.BICUBIC))
    return Preprocessing(mean, std, ratio, resample.name.lower())


def _side(size: int | dict[str, int]) -> int:
    return min(size.values()) if isinstance(size, dict) else size
