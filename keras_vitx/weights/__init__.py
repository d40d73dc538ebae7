"""Checkpoints: the catalog, reading, conversion and saving."""

from keras_vitx.positions import resample
from keras_vitx.weights.card import model_card
from keras_vitx.weights.catalog import Checkpoint, checkpoints_of, find
from keras_vitx.weights.convert import convert, has_checkpoint_names, to_checkpoint
from keras_vitx.weights.load import load, load_weights, resolve
from keras_vitx.weights.saving import save_safetensors, save_torch

__all__ = [
    "Checkpoint",
    "checkpoints_of",
    "find",
    "load_weights",
    "save_safetensors",
    "save_torch",
    "to_checkpoint",
]
