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


def __getattr__(name: str):
    if name != "facts_of":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    warnings.warn("`facts_of` is now `model_input`.", DeprecationWarning, stacklevel=2)
    return model_input
