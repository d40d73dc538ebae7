"""Which network the arrays of a file look like: for errors, and where no name is given."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keras_vitx.weights.names import TABLES


class Identity(NamedTuple):
    """What the names and shapes of arrays tell about a network.

    Attributes:
        family: Such as "CaiT"; "ViT" stands for all families with a ViT's variables.
        depth: Number of blocks, class blocks not counted.
        dim: Width of a token, in the last stage if there are several.
    """

    family: str
    depth: int
    dim: int

    def __str__(self):
        return f"a {self.family} of {self.depth} blocks, {self.dim} wide"


Sizes = Callable[[str], Mapping[str, Identity]]
"""Given a family, returns what the files of each of its sizes look like, by name."""


# The plain transformer, which has no variables of its own, and a variable that it has.
PLAIN, PLAIN_MARK = "ViT", "cls_token"


def identify(shapes: Mapping[str, tuple[int, ...]]) -> Identity | None:
    """Return what arrays look like, or None if they look like no network of the zoo.

    Args:
        shapes: Shapes by name, a checkpoint's or Keras's.
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
    """Say what arrays look like: the name of a size, a family with numbers, or neither.

    Args:
        shapes: As in `identify`.
        sizes: What the arrays of each known size of a family look like.
    """
    found = identify(shapes)
    if found is None:
        return "another architecture"
    known = sizes(found.family) if sizes else {}
    return next((name for name, identity in known.items() if identity == found), str(found))
