"""The public names of the package, all of which `import keras_vitx` re-exports."""

import keras

from keras_vitx import analysis, data, layers, models, robustness, training, weights
from keras_vitx.analysis.macs import count_macs
from keras_vitx.data import decode_predictions
from keras_vitx.export.export import export
from keras_vitx.export.fuse import fuse
from keras_vitx.export.predictor import predictor
from keras_vitx.models import as_chain, create_model, features, list_models
from keras_vitx.models.sizes import *  # noqa: F403 - every family and size
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.training import evaluate, fit


def preprocess_input(images, model):
    """Preprocess images into the batch that a model expects.

    Each image is converted to the model's channels, resized to cover the input size divided by
    the crop ratio, cropped at the center and normalized: (x / 255 - mean) / std. With a crop ratio
    of 1, images of the model's own size are only normalized.

    Tensors of the backend, also in its graphs, stay tensors: under TensorFlow, `dataset.map(lambda
    x, y: (kv.preprocess_input(x, model), y))` works for Keras's image datasets. Elsewhere, tensors
    are arrays.

    Args:
        images: One image or a list of them: a path, the content of a file (bytes), an open file or
            upload, a PIL image, or an array (height, width) or (height, width, channels). An array
            (n, height, width, channels) is n images. Arrays are numbers in 0..255, or floats in
            0..1 if none is above 1; they are rounded to 256 levels. Tensors of such shapes, of the
            model's channels or one, are rounded only to be resized, which has no gradient.
        model: A model with `preprocessing`, as those of keras_vitx have it; or the name of a size
            (see `list_models`) or of a checkpoint.

    Returns:
        float32 (n, height, width, channels), the input of the model; of a tensor, a tensor of
        its rank.

    Raises:
        ValueError: if the name is unknown, the model has no `preprocessing`, or an array has
            another shape, dtype or range.
        OSError: if a file can't be decoded, or has more than twice
            `PIL.Image.MAX_IMAGE_PIXELS` pixels; the message names it.
    """
    is_tensor = keras.ops.is_tensor(images) or isinstance(images, keras.KerasTensor)
    preprocess = layers.preprocessing.preprocess_tensor if is_tensor else data.preprocess_input
    return preprocess(images, models.model_input(model))
