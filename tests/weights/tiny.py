"""The model of the golden case of CaiT, and the ways to write and read weights."""

import keras
import numpy as np

import keras_vitx as kv
from keras_vitx.weights import save_safetensors, save_torch

SAVERS = {
    ".safetensors": save_safetensors,
    ".pth": save_torch,
    ".weights.h5": keras.Model.save_weights,
    ".keras": keras.Model.save,
}
"""Functions that write the weights of a model, by suffix."""


def make_tiny(**changes):
    """Make the model of the golden case, with changed arguments."""
    arguments = {
        "dim": 24,
        "depth": 3,
        "num_heads": 4,
        "patch_size": 8,
        "input_shape": (32, 32, 3),
        "classes": 10,
        "classifier_activation": None,
    }
    return kv.CaiT(**{**arguments, **changes})


def weights_of(model):
    return {v.path: np.array(keras.ops.convert_to_numpy(v.value)) for v in model.weights}
