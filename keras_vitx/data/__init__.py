"""Image data: sources, preprocessing and batches for training."""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.data.files import FileBatch, batches_of_files
from keras_vitx.data.grain import Examples, grain_batches
from keras_vitx.data.pipelines import Pipelines, pipelines
from keras_vitx.data.predictions import decode_predictions
from keras_vitx.data.preprocessing import decode_image, preprocess_input
from keras_vitx.data.sources import Source, open_real, open_source

__all__ = [
    "Augmentation",
    "Examples",
    "FileBatch",
    "Mixing",
    "Pipelines",
    "Source",
    "batches_of_files",
    "decode_image",
    "decode_predictions",
    "grain_batches",
    "open_real",
    "open_source",
    "pipelines",
    "preprocess_input",
]
