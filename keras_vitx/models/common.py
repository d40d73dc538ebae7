"""Layers that several families have in common."""

import keras

from keras_vitx.checks import check, check_counts
from keras_vitx.layers import AttentionPooling, ClassToken, PatchEmbedding
from keras_vitx.layers.block import NORMS
from keras_vitx.models.arguments import Layers, ModelArguments


def class_tokens(distillation_token: bool = False) -> list[keras.layers.Layer]:
    """Return the layers that prepend the class token, followed by the distillation token if any."""
    distillation = [ClassToken(name="dist_token")] if distillation_token else []
    return [*distillation, ClassToken(name="cls_token")]


def last_norm(epsilon: float = 1e-6, name: str = "norm", kind: str = "layer") -> keras.layers.Layer:
    """Return a norm of tokens, by default the one after the last block."""
    return NORMS[kind](epsilon=epsilon, name=name)


def embedding(
    dim: int, patch_size: int, placed: Layers, patch_bias: bool, pre_norm: bool, epsilon: float
) -> Layers:
    """Return the layers before the blocks: patches, tokens and positions, and a norm."""
    patches = PatchEmbedding(dim, patch_size, use_bias=patch_bias, name="patch_embed")
    return [patches, *placed, *([last_norm(epsilon, "norm_pre")] if pre_norm else [])]


def ending(
    args: ModelArguments,
    epsilon: float,
    norm: bool,
    mean_pooling: bool,
    pool: AttentionPooling | None,
    kind: str = "layer",
    **head: int,
) -> Layers:
    """Return the layers after the blocks: a norm, before or after the pooling, and the head."""
    return [
        *([last_norm(epsilon, kind=kind)] if norm and not mean_pooling else []),
        *args.head(
            **head,
            attention_pooling=pool,
            default_pooling="avg" if mean_pooling and pool is None else None,
            after_pooling=[last_norm(epsilon, "fc_norm", kind)] if mean_pooling else [],
        ),
    ]


def check_heads(dim: int, num_heads: int) -> None:
    """Raise a ValueError unless `num_heads` divides `dim`."""
    check_counts(dim=dim, num_heads=num_heads)
    check(dim % num_heads == 0, f"`num_heads` must divide dim={dim}.", num_heads)
