"""Vision transformers with modified attention, for Keras 3."""

__version__ = "0.1.0"

from keras_vitx import backend

backend.choose()

from keras_vitx import analysis, data, export, layers, models, training, weights
from keras_vitx.data import preprocess_input
from keras_vitx.models import (
    CaiT,
    CaiT_M24,
    CaiT_M36,
    CaiT_M48,
    CaiT_Mini,
    CaiT_S24,
    CaiT_S36,
    CaiT_S48,
    CaiT_XS24,
    CaiT_XS36,
    CaiT_XXS24,
    CaiT_XXS36,
    create_model,
    list_models,
)
from keras_vitx.training import fit
