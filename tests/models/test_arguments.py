"""What any family refuses, at construction; arguments of one are in errors/model_errors.py."""

import inspect
import re

import keras
import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.layers import SharedAttention, TokenMixing

pytestmark = pytest.mark.backend_free


def refused(family, words, **arguments):
    """Check the words of the error, where "..." stands for any."""
    pattern = ".*".join(map(re.escape, words.split("...")))
    with pytest.raises((ValueError, TypeError), match=f"(?s){pattern}"):
        FAMILIES[family](**arguments)


MINE = TokenMixing(4, name="mine")
WRONG = {
    "`height` must be ... Received: None": {"input_shape": (None, None, 3)},
    "`height` must be an integer ... Received: None": {
        "input_shape": None,
        "input_tensor": keras.Input((None, None, 3)),
    },
    "contradicts `input_tensor`. Received: input_shape=(16, 16, 3), ...(None, 16, 24, 3)": {
        "input_shape": (16, 16, 3),
        "input_tensor": keras.Input((16, 24, 3)),
    },
    "`input_tensor` must have a floating dtype...uint8": {
        "input_shape": None,
        "input_tensor": keras.Input((16, 16, 3), dtype="uint8"),
    },
    "`classes` must be ... Received: 0": {"classes": 0},
    "`classes` must be ... Received: True": {"classes": True},
    "`pooling` must be ... Received: 'foo'": {"pooling": "foo"},
    "weights='foo' is neither a file": {"weights": "foo"},
    "`patch_size` must be ... Received: 0": {"patch_size": 0},
    "`rate` must be in [0, 1). Received: rate=1.0": {"drop_path": 1.0},
    "`rate`... Received: rate=2.0": {"dropout": 2.0},
    "unexpected keyword argument 'color'": {"color": "blue"},
    "`residual_dtype` must be one of ... Received: 'half'": {"residual_dtype": "half"},
    **{
        f"`{part}` must return a new layer... again for block": {part: lambda index: MINE}
        for part in ("attention", "mlp")
    },
}
NEAREST = "`input_shape` must ... Received: input_shape={}; the nearest is ("
# Of a network with stages, each has its own.
ONE_STAGE = {
    NEAREST.format((20, 16, 3)): {"input_shape": (20, 16, 3)},
    "`dim` must be ... Received: 0": {"dim": 0},
    "`depth` must be ... Received: 0": {"depth": 0},
}
HEADS = {
    "`num_heads` must divide `dim`. Received: num_heads=3": {"num_heads": 3},
    "`num_heads` must be ... Received: 0": {"num_heads": 0},
}


def rows():
    for family in FAMILIES:
        yield from ((family, *row) for row in WRONG.items())
        if family != "PiT":
            yield from ((family, *row) for row in ONE_STAGE.items())
        if family not in ("PiT", "Mixer"):
            yield from ((family, *row) for row in HEADS.items())
        # Its own counts and choices.
        wrong = {int: -1, int | None: -1, str: "foo", str | None: "foo"}
        own = inspect.signature(getattr(kv, family).list_layers).parameters
        for name, kind in ((name, argument.annotation) for name, argument in own.items()):
            if kind in wrong:
                yield family, f"`{name}`... Received: ...{wrong[kind]!r}", {name: wrong[kind]}


@pytest.mark.parametrize(("family", "words", "arguments"), list(rows()))
def test_wrong_argument_of_any_family(family, words, arguments):
    refused(family, words, **arguments)


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_sharing_of_maps(family):
    heads = 4 if family in ("ConViT", "PiT") else 2
    first = "must not read shared maps in the first block... SharedAttention for block 0"
    refused(family, first, attention=lambda index: SharedAttention(heads))
