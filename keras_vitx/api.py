"""The public names of the package, all of which `import keras_vitx` re-exports."""

import typing as _typing

from keras_vitx import (
    analysis,
    data,
    layers,
    models,
    robustness,
    segmentation,
    training,
    weights,
)
from keras_vitx.backend import keep_memory
from keras_vitx.data import decode_predictions
from keras_vitx.export.fuse import fuse
from keras_vitx.export.predictor import predictor
from keras_vitx.models import as_chain, create_model, features, list_models
from keras_vitx.models.saving import load, push, save
from keras_vitx.models.sizes import *  # noqa: F403 - every family and size
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.training import evaluate, fit

if _typing.TYPE_CHECKING:  # Editors do not see that the module can be called.
    from keras_vitx.export.export import export
else:
    from keras_vitx import export


def preprocess_input(images, model):
    """Preprocess images into the batch that a model expects, as `data.preprocess_input` does.

    Args:
        images: One image or a list of them: paths, PIL images or arrays.
        model: A model of keras_vitx; or the name of a size (see `list_models`) or of a
            checkpoint, whose image size and preprocessing are used.

    Raises:
        ValueError: if the name is unknown, or an array is not an image.
        OSError: if a file can't be decoded; the message names the file.
    """
    return data.preprocess_input(images, models.model_input(model))
