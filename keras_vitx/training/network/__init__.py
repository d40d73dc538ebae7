"""What a recipe changes in the network."""

import keras

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.training.network.drop_path import set_drop_path
from keras_vitx.training.network.similarity import set_similarity
from keras_vitx.training.recipe import Network


def set_network(model: keras.Model, settings: Network) -> None:
    """Change `model`, in place, as a recipe asks; before it is compiled.

    Raises:
        ValueError: if the model does not have what a setting changes.
    """
    if settings.remat is not None and not hasattr(model, "remat"):
        raise ValueError(
            "`remat`: the model is no `Chain`, for which it can be set. Give "
            "remat=None, and make the layers within `keras.RematScope`."
        )
    if settings.crop_ratio is not None and getattr(model, "preprocessing", None) is None:
        raise ValueError("`crop_ratio`: the model has no `preprocessing`. Give crop_ratio=None.")
    if settings.drop_path is not None:
        set_drop_path(model, settings.drop_path, settings.drop_path_rises)
    if settings.similarity is not None:
        set_similarity(model, settings.similarity, settings.similarity_depth or 1)
    if settings.remat is not None:
        model.remat = settings.remat
    if settings.crop_ratio is not None:
        facts = Preprocessing.of(model.preprocessing)
        model.preprocessing = facts.but(crop_ratio=settings.crop_ratio)
