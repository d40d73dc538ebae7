"""Tensors that are no images."""

import keras
import numpy as np
from harness import FAMILIES

import keras_vitx as kv

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), "uint8")


def prepared(array):
    return lambda: kv.preprocess_input(keras.ops.convert_to_tensor(array), FAMILIES["ViT"]())


ERRORS = {
    ValueError: {
        "0..255, or floats in 0..1. Received: float32 in -1.0": prepared(PIXELS - np.float32(1)),
        "Received: bool": prepared(PIXELS > 9),
        "Received: int32 in": prepared(PIXELS.astype("int32") * 2),
    }
}
