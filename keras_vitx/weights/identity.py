"""Identifying a network by the names and shapes of its arrays, for error messages."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keras_vitx.weights.names import TABLES


class Identity(NamedTuple):
    """The facts about a network that its array names and shapes reveal.

    Attributes:
        family: Such as "CaiT"; "ViT" stands for all families with the variables of a ViT.
        depth: Number of blocks, excluding class blocks.
        dim: Width of a token, in the last stage if there are several.
    """

    family: str
    depth: int
    dim: int

    def __str__(self):
        return f"a {self.family} of {self.depth} blocks, {self.dim} wide"


Sizes = Callable[[str], Mapping[str, Identity]]
"""A function from a family to the identity of each of its sizes, by name."""


# The plain transformer has no variables of its own, so it is recognized by its class token.
PLAIN, PLAIN_MARK = "ViT", "cls_token"


def identify(shapes: Mapping[str, tuple[int, ...]]) -> Identity | None:
    """Return the identity of a network, or None if it is of no family of this package.

    Args:
        shapes: Shapes by name, as named in a checkpoint or in Keras.
    """
    marks = {name: table.mark for name, table in TABLES.items() if table.mark}
    marks[PLAIN] = PLAIN_MARK  # the last one
    family = next(
        (name for name, mark in marks.items() if any(re.search(mark, path) for path in shapes)),
        None,
    )
    blocks = {match[0] for path in shapes if (match := re.match(r"(.*_|.*\.)?blocks[._]\d+", path))}
    norm = shapes.get("norm.weight") or shapes.get("norm/gamma")
    if family is None or not blocks or not norm:
        return None
    return Identity(family, len(blocks), norm[0])


def looks_like(shapes: Mapping[str, tuple[int, ...]], sizes: Sizes | None = None) -> str:
    """Describe what arrays look like: a size, a family with its numbers, or neither.

    Args:
        shapes: As in `identify`.
        sizes: The identity of each known size of a family.
    """
    found = identify(shapes)
    if found is None:
        return "another architecture"
    known = sizes(found.family) if sizes else {}
    return next((name for name, identity in known.items() if identity == found), str(found))
