"""Images from which the ranges of activations are taken."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.data.preprocessing import (
    decode_image,
    fit_to_model,
    normalize,
    resize_and_crop,
    with_channels,
)
from keras_vitx.data.sources.folders import image_files
from keras_vitx.export.options.prepare import Prepared
from keras_vitx.preprocessing import ModelInput

COUNT = 256
"""Number of images taken from a folder or a source, evenly spaced."""


def calibration_images(parts: Prepared, source: Any) -> np.ndarray:
    """Return images as the input of the file that is written.

    Args:
        parts: The model that is written.
        source: A folder of images, in sub-folders or not, the path of an .npz file with
            `x_train`, or another name that `data.open_source` takes: `COUNT` of its (training)
            images, preprocessed for the model. Or an array, as the file takes it.

    Raises:
        ValueError: if there is no image, or the images of an array do not fit the model.
        OSError: if an image can't be decoded.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _checked(parts.joined(), source)
    folder = Path(source).expanduser()
    images = image_files(folder) if folder.is_dir() else data.open_source(source).train.images
    if not len(images):
        raise ValueError(f"calibration: there is no image in {str(source)!r}.")
    chosen = np.unique(np.linspace(0, len(images) - 1, COUNT).astype(int))
    facts = ModelInput.of(parts.network)
    return np.stack([_fitted(images[index], parts, facts) for index in chosen])


def _fitted(image, parts, facts):
    if isinstance(image, Path):
        image = decode_image(image)
    if parts.before is None:
        return normalize(
            fit_to_model(image, facts, facts.preprocessing.crop_ratio), facts.preprocessing
        )
    # The file takes pixels; where of any size, of the size that needs the least resizing.
    sides = (round(side / parts.before.crop_ratio) for side in parts.before.size)
    size = tuple(parts.size) if None not in parts.size else tuple(sides)
    return resize_and_crop(with_channels(image, facts.channels), size)


def _checked(model: keras.Model, images: Any) -> np.ndarray:
    images = keras.ops.convert_to_numpy(images)
    _, *shape = model.inputs[0].shape
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    fits = images.ndim == 4 and all(
        side in (None, given) for side, given in zip(shape, images.shape[1:], strict=True)
    )
    if not fits or not len(images):
        sides = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(
            f"calibration should be a folder or an array (1 or more, {sides}), not an array of "
            f"shape {images.shape}."
        )
    return images.astype("float32" if "float" in dtype else dtype)
