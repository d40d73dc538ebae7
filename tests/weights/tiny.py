"""The model of the golden case of CaiT, and the ways to write, change and compare models."""

import json

import keras
import numpy as np
import pytest
from harness import GOLDEN_CASES, array

import keras_vitx as kv
from keras_vitx.weights import save_safetensors, save_torch

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = tuple("abcde")
PREPROCESSING = kv.Preprocessing([0.1, 0.2, 0.3], [0.5, 0.5, 0.25], 0.875, "bilinear")
FORMATS = {
    ".safetensors": save_safetensors,
    ".pth": save_torch,
    ".weights.h5": keras.Model.save_weights,
    ".keras": keras.Model.save,
}
"""Functions that write the weights of a model, by suffix."""


def make_tiny(**changes):
    """Make the model of the golden case, with changed arguments."""
    return GOLDEN_CASES["cait"](**{"weights": None, **changes})


def save(model, path):
    """Write a model in the format of the path's suffix, or as a directory; return the path."""
    if path.suffix in (".pth", ".ckpt"):
        pytest.importorskip("torch")
    if path.suffix == ".ckpt":
        return save(model, path.with_suffix(".pth")).rename(path)
    (write,) = [FORMATS[end] for end in FORMATS if path.name.endswith(end)] or [kv.save]
    write(model, path)
    return path


def edit(directory, change):
    """Change the config in a directory by a function of it, which returns it or changes it."""
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(change(content) or content))


def positions_of(model):
    return array(model.get_layer("pos_embed").embeddings.value)


def same_weights(one, other, but="\0"):
    """Check that the weights of two models are equal, except paths that start with `but`."""
    one, other = ([v for v in each.weights if not v.path.startswith(but)] for each in (one, other))
    assert one
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(array(ours.value), array(theirs.value), err_msg=ours.path)
