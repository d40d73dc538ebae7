"""Which network a file's arrays look like: for errors, and where no name is given."""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Identity(NamedTuple):
    """What the names and shapes of arrays tell of a network.

    Attributes:
        family: Such as "CaiT"; "ViT" stands for all that have a ViT's variables.
        depth: Number of blocks, those on the class token alone left out.
        dim: Width of a token, of the last stage where there are several.
    """

    family: str
    depth: int
    dim: int

    def __str__(self):
        return f"a {self.family} of {self.depth} blocks, {self.dim} wide"


# Parts of names that only one family has, in checkpoints and in Keras; first match wins.
MARKS = (
    ("CaiT", "blocks_token_only"),
    ("ConViT", "gating_param"),
    ("DeepViT", "reatten_matrix"),
    ("RefinedViT", "adapt_bn"),
    ("PiT", "transformers"),
    ("Mixer", "mlp_tokens"),
    ("Mixer", "attn/mlp"),
    ("ViT", "cls_token"),
)


def identify(shapes: Mapping[str, tuple[int, ...]]) -> Identity | None:
    """Return what arrays look like, None where they look like no network of the zoo.

    Args:
        shapes: Shapes by name, a checkpoint's or Keras'.
    """
    family = next((name for name, mark in MARKS if any(mark in path for path in shapes)), None)
    blocks = {match[0] for path in shapes if (match := re.match(r"(.*_|.*\.)?blocks[._]\d+", path))}
    norm = shapes.get("norm.weight") or shapes.get("norm/gamma")
    if family is None or not blocks or not norm:
        return None
    return Identity(family, len(blocks), norm[0])


def looks_like(
    shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, Identity] | None = None
) -> str:
    """Say what arrays look like: a size's name, a family with numbers, or neither.

    Args:
        shapes: As in `identify`.
        sizes: What the arrays of each known size look like.
    """
    found = identify(shapes)
    if found is None:
        return "another architecture"
    known = next((name for name, identity in (sizes or {}).items() if identity == found), None)
    return known or str(found)
