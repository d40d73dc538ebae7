"""The model of the golden case of CaiT, and changes of saved ones."""

import json

from harness import GOLDEN_CASES, array

import keras_vitx as kv

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = tuple("abcde")
PREPROCESSING = kv.Preprocessing([0.1, 0.2, 0.3], [0.5, 0.5, 0.25], 0.875, "bilinear")


def make_tiny(**changes):
    """Make the model of the golden case, with changed arguments."""
    return GOLDEN_CASES["cait"](**{"weights": None, **changes})


def edit(directory, change):
    """Change the config in a directory by a function of it, which returns it or changes it."""
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(change(content) or content))


def positions_of(model):
    return array(model.get_layer("pos_embed").embeddings.value)
