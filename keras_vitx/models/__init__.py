"""The model class, the families and their sizes."""

from keras_vitx.models.build import (
    FAMILIES,
    MODELS,
    constructor_of,
    create_model,
    family,
    list_models,
    model_input,
    variant,
)
from keras_vitx.models.chain import Chain
from keras_vitx.models.cut import as_chain
from keras_vitx.models.features import Features, features
from keras_vitx.models.network import Layers, Network, Similarity
from keras_vitx.models.sizes import *  # noqa: F403 - every family and size
from keras_vitx.renamed import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__, facts_of="model_input")
