"""Vision transformers with modified attention, for Keras 3."""

__version__ = "0.1.0"

from keras_vitx import backend

backend.choose()

from keras_vitx import analysis, data, export, layers, models, training, weights
from keras_vitx.data import preprocess_input
from keras_vitx.models import create_model, list_models
from keras_vitx.models.sizes import *  # noqa: F403 - every family and size
from keras_vitx.training import fit
