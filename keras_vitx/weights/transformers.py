"""Names in files of Hugging Face Transformers and of authors, and of parts of arrays.

ViT, DeiT, I-JEPA, ViT-MSN, CLIP, DINOv2 and 3, SigLIP and SigLIP 2 (images of one size); Meta's
DINOv2 and 3, EVA-02, and the image towers of OpenAI's and open_clip's CLIP.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

PATCHES = re.compile(
    r"(.*)embeddings\.(?:patch_embeddings\.(?:projection\.)?|patch_embedding\.)weight"
)
REGISTERS = "embeddings.register_tokens"

# Whole names, without a prefix such as "vit."; the first match wins. An empty name is of a weight
# that no prediction depends on.
ROWS = (
    (r"embeddings\.(cls)_token", r"\1_token"),
    (r"embeddings\.class_embedding", r"cls_token"),
    (r"pre_layrnorm\.(.+)", r"norm_pre.\1"),
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
    (r"encoder\.layer\.(\d+)\.mlp\.weights_in\.(.+)", r"blocks.\1.mlp.fc1.\2"),
    (r"encoder\.layer\.(\d+)\.mlp\.weights_out\.(.+)", r"blocks.\1.mlp.fc2.\2"),
    (r"encoder\.layer\.(\d+)\.(mlp\..+)", r"blocks.\1.\2"),
    (r"embeddings\.patch_embeddings\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"(?:model\.)?layer\.(\d+)\.attention\.([qkv]_proj\..+)", r"blocks.\1.attn.\2"),
    (r"(?:model\.)?layer\.(\d+)\.attention\.o_proj\.(.+)", r"blocks.\1.attn.proj.\2"),
    (r"(?:model\.)?layer\.(\d+)\.layer_scale([12])\.lambda1", r"blocks.\1.gamma_\2"),
    (r"(?:model\.)?layer\.(\d+)\.(norm[12]\..+)", r"blocks.\1.\2"),
    (r"(?:model\.)?layer\.(\d+)\.mlp\.(?:gate|up)_proj\.(.+)", r"blocks.\1.mlp.fc1.\2"),
    (r"(?:model\.)?layer\.(\d+)\.mlp\.down_proj\.(.+)", r"blocks.\1.mlp.fc2.\2"),
    (r"(?:text_model\..+|logit_(?:scale|bias)|embeddings\.position_ids)", r""),
    (r"(?:visual|text)_projection\..+", r""),
    (r"embeddings\.position_embedding\.weight", r"pos_embed"),
    (r"embeddings\.patch_embedding\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"encoder\.layers\.(\d+)\.self_attn\.[qkv]_proj\.(.+)", r"blocks.\1.attn.qkv.\2"),
    (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.(.+)", r"blocks.\1.attn.proj.\2"),
    (r"encoder\.layers\.(\d+)\.layer_norm([12])\.(.+)", r"blocks.\1.norm\2.\3"),
    (r"encoder\.layers\.(\d+)\.(mlp\..+)", r"blocks.\1.\2"),
    (r"post_layernorm\.(.+)", r"norm.\1"),
    (r"head\.probe", r"attn_pool.latent"),
    (r"head\.attention\.(in_proj_.+)", r"attn_pool.\1"),
    (r"head\.attention\.out_proj\.(.+)", r"attn_pool.proj.\1"),
    (r"head\.layernorm\.(.+)", r"attn_pool.norm.\1"),
    (r"head\.(mlp\..+)", r"attn_pool.\1"),
)  # fmt: skip
# Names of authors, and those of timm whose arrays are parts of one: EVA-02-B and L, DINOv3-S+.
JOINED = (
    (r"(?:mask_token|.+\.bias_mask|proj)", r""),
    (r"(?:register|storage)_tokens", r"reg_token"),
    (r"(blocks\.\d+\.mlp)\.(?:w1|w2|w12)\.(.+)", r"\1.fc1.\2"),
    (r"(blocks\.\d+\.mlp)\.w3\.(.+)", r"\1.fc2.\2"),
    (r"(blocks\.\d+\.mlp)\.ffn_ln\.(.+)", r"\1.norm.\2"),
    (r"(blocks\.\d+\.attn)\.inner_attn_ln\.(.+)", r"\1.norm.\2"),
    (r"conv1\.(weight)", r"patch_embed.proj.\1"),
    (r"class_embedding", r"cls_token"),
    (r"positional_embedding", r"pos_embed"),
    (r"ln_pre\.(.+)", r"norm_pre.\1"),
    (r"ln_post\.(.+)", r"norm.\1"),
    (r"transformer\.resblocks\.(\d+)\.ln_([12])\.(.+)", r"blocks.\1.norm\2.\3"),
    (r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(.+)", r"blocks.\1.attn.qkv.\2"),
    (r"transformer\.resblocks\.(\d+)\.attn\.out_proj\.(.+)", r"blocks.\1.attn.proj.\2"),
    (r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.(.+)", r"blocks.\1.mlp.fc1.\2"),
    (r"transformer\.resblocks\.(\d+)\.mlp\.c_proj\.(.+)", r"blocks.\1.mlp.fc2.\2"),
    (r"(blocks\.\d+\.attn)\.[qkv]_proj\.weight", r"\1.qkv.weight"),
    (r"(blocks\.\d+\.attn)\.([qv])_proj\.bias", r"\1.\2_bias"),
    (r"(blocks\.\d+\.mlp)\.fc1_[gx]\.(.+)", r"\1.fc1.\2"),
)
KEY_BIAS = (r"(blocks\.\d+\.attn)\.[qkv]_proj\.bias", r"\1.qkv.bias")
# Parts of one matrix, in timm's order.
PARTS = ("query|q_proj|gate_proj|fc1_g|w1", "key|k_proj|up_proj|fc1_x|w2", "value|v_proj")


def prefix_of(names: Iterable[str]) -> str | None:
    """Return what precedes the names of Transformers, often empty; None for names of others."""
    return next((match[1] for name in names if (match := PATCHES.fullmatch(name))), None)


def timm_names(names: Iterable[str], prefix: str | None) -> dict[str, list[str]]:
    """Return timm's names, each with the names in the file of its parts along the first axis.

    `prefix` is that of Transformers' names; None is for timm's.
    """
    joined: dict[str, list[str]] = {}
    has_key_bias = any(name.endswith(".k_proj.bias") for name in names)
    rows = (KEY_BIAS, *JOINED) if has_key_bias else JOINED
    for name in sorted(names, key=_part):
        short = name
        if prefix is not None:
            short = _renamed(name.removeprefix(prefix), ROWS)
        if short := _renamed(short, rows):
            joined.setdefault(short, []).append(name)
    return joined


def apart(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays of EVA-02-B and L, DINOv3-S+ and H+ by timm's names, which has parts of one.

    Gates and units of MLPs are apart; with norms in the MLPs, queries, keys and values are, too.
    """
    renamed = {}
    is_normed = any(name.endswith(".mlp.norm.weight") for name in arrays)
    for name, array in arrays.items():
        layer, _, kind = name.rpartition(".")
        second = arrays.get(f"{layer.removesuffix('fc1')}fc2.weight")
        is_gated = second is not None and len(array) == 2 * second.shape[1]
        if is_gated and (is_normed or "pos_embed" not in arrays):
            parts = [f"{layer}_{part}.{kind}" for part in "gx"]
        elif is_normed and name.endswith(".qkv.weight"):
            parts = [name.replace("qkv", f"{part}_proj") for part in "qkv"]
        elif is_normed and name.endswith((".q_bias", ".v_bias")):
            parts = [name.replace("_bias", "_proj.bias")]
        else:
            parts = [name]
        renamed |= zip(parts, np.array_split(array, len(parts)), strict=True)
    return renamed


def _renamed(name: str, rows: Iterable[tuple[str, str]]) -> str:
    matches = ((re.fullmatch(pattern, name), new) for pattern, new in rows)
    return next((match.expand(new) for match, new in matches if match), name)


def _part(name: str) -> int:
    return next((i for i, part in enumerate(PARTS) if re.search(rf"\.(?:{part})\.", name)), 0)
