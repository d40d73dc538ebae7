"""What any family refuses, at construction; arguments of one are in errors/model_errors.py."""

import inspect
import re

import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.layers import SharedAttention, TokenMixing

pytestmark = pytest.mark.backend_free


MINE = TokenMixing(4, name="mine")
# Arguments of all families that reach the layers by each family's own lines.
WRONG = {
    "`patch_size` must be ... Received: 0": {"patch_size": 0},
    "`rate` must be in [0, 1). Received: rate=1.0": {"drop_path": 1.0},
    "`rate`... Received: rate=2.0": {"dropout": 2.0},
    "`attention` must return a new layer for each block. Received": {
        "attention": lambda index: MINE
    },
    "`mlp` must return a new layer for each block. Received": {"mlp": lambda index: MINE},
}
NEAREST = "`input_shape` must ... Received: input_shape=(20, 16, 3); the nearest is ("
FIRST = "must not read shared maps in the first block... SharedAttention for block 0"


def rows():
    for family in FAMILIES:
        yield from ((family, *row) for row in WRONG.items())
        if family != "PiT":  # Each of its stages has another grid.
            yield family, NEAREST, {"input_shape": (20, 16, 3)}
        heads = 4 if family in ("ConViT", "PiT") else 2
        yield family, FIRST, {"attention": lambda index, heads=heads: SharedAttention(heads)}
        # Its own counts and choices.
        wrong = {int: -1, int | None: -1, str: "foo", str | None: "foo"}
        own = inspect.signature(getattr(kv, family).list_layers).parameters
        for name, kind in ((name, argument.annotation) for name, argument in own.items()):
            if kind in wrong:
                yield family, f"`{name}`... Received: ...{wrong[kind]!r}", {name: wrong[kind]}


@pytest.mark.parametrize(("family", "words", "arguments"), list(rows()))
def test_wrong_argument_of_any_family(family, words, arguments):
    pattern = ".*".join(map(re.escape, words.split("...")))
    with pytest.raises(ValueError, match=f"(?s){pattern}"):
        FAMILIES[family](**arguments)
