"""Image data: sources, preprocessing and batches for training.

Importing it does not import Keras, which worker processes don't need.
"""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.data.decoding import decode_image as decode_image
from keras_vitx.data.images import FileBatch as FileBatch
from keras_vitx.data.images import batches_of_files
from keras_vitx.data.images import preprocess_input as preprocess_input
from keras_vitx.data.pipeline import Pipelines, pipelines
from keras_vitx.data.predictions import decode_predictions
from keras_vitx.data.sources import Dataset, Split, from_files, load_dataset

__all__ = [
    "Augmentation",
    "Dataset",
    "Mixing",
    "Pipelines",
    "Split",
    "batches_of_files",
    "decode_predictions",
    "from_files",
    "load_dataset",
    "pipelines",
]
