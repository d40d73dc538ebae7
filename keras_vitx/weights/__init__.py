"""Checkpoints: the catalog, reading, conversion and saving."""

from keras_vitx.positions import resample
from keras_vitx.weights.catalog import Checkpoint, checkpoints_of, find
from keras_vitx.weights.convert import to_checkpoint
from keras_vitx.weights.load import find_source, load, load_weights, open_source
from keras_vitx.weights.safetensors import save_safetensors

__all__ = [
    "Checkpoint",
    "checkpoints_of",
    "find",
    "load_weights",
    "save_safetensors",
    "to_checkpoint",
]
