"""The model class, the families and their sizes."""

from keras_vitx.models.build import MODELS, constructor_of, create_model, list_models
from keras_vitx.models.cait import (
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
)
from keras_vitx.models.chain import Chain
