"""Image size and preprocessing of a model by name, without building it."""

from typing import Any

from keras_vitx.models.build import MODELS
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import nearest
from keras_vitx.weights import checkpoints_of


def facts_of(model: Any) -> Any:
    """Return the image size and the preprocessing of `model`, without building it.

    Args:
        model: Name of a size or of a checkpoint; anything else is returned unchanged.

    Raises:
        ValueError: if the name is unknown; the message suggests the nearest ones.
    """
    if not isinstance(model, str):
        return model
    if model in MODELS:
        size = MODELS[model]
        return ModelInput((None, *size.data["input_shape"]), size.preprocessing)
    checkpoints = {checkpoint.name: checkpoint for checkpoint in checkpoints_of(None)}
    if model not in checkpoints:
        hint = nearest(model, [*MODELS, *checkpoints])
        raise ValueError(f"No model or checkpoint is named {model!r}. {hint}")
    side = checkpoints[model].image_size
    return ModelInput((None, side, side, 3), checkpoints[model].preprocessing)
