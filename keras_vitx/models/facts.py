"""What a model wants of its images, by its name alone."""

from typing import Any, NamedTuple

from keras_vitx.models.build import MODELS
from keras_vitx.text import nearest
from keras_vitx.weights import checkpoints_of


class Facts(NamedTuple):
    """Stands in for a model where images are made ready.

    Attributes:
        input_shape: (None, height, width, channels).
        preprocessing: As in `Chain`.
    """

    input_shape: tuple
    preprocessing: dict[str, Any]


def facts_of(model: Any) -> Any:
    """Return what says how images are made ready for `model`, without building it.

    Args:
        model: The name of a size or of a checkpoint; anything else is returned as it is.

    Raises:
        ValueError: when nothing has that name; the message has the nearest ones.
    """
    if not isinstance(model, str):
        return model
    if model in MODELS:
        size = MODELS[model]
        return Facts((None, *size.data["input_shape"]), size.preprocessing)
    checkpoints = {checkpoint.name: checkpoint for checkpoint in checkpoints_of(None)}
    if model not in checkpoints:
        hint = nearest(model, [*MODELS, *checkpoints])
        raise ValueError(f"No model or checkpoint is named {model!r}. {hint}")
    side = checkpoints[model].image_size
    return Facts((None, side, side, 3), checkpoints[model].preprocessing)
