"""Checkpoints: the catalogue, reading, conversion and saving."""

from keras_vitx.weights.card import model_card
from keras_vitx.weights.catalog import Checkpoint, checkpoints_of, find
from keras_vitx.weights.convert import Conversion, convert, to_checkpoint
from keras_vitx.weights.load import Resolved, load, load_weights, resolve
from keras_vitx.weights.positions import resample
from keras_vitx.weights.reading import check_archive
from keras_vitx.weights.save import has_checkpoint_names, save_safetensors, save_torch

__all__ = [
    "Checkpoint",
    "Conversion",
    "checkpoints_of",
    "convert",
    "find",
    "load_weights",
    "model_card",
    "save_safetensors",
    "save_torch",
    "to_checkpoint",
]
