"""Names in checkpoints of Hugging Face Transformers: ViT, DeiT and DINOv2."""

import re
from collections.abc import Iterable

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
