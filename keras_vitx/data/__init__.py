"""Image data: sources, preprocessing and batches for training."""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.data.files import FileBatch, batches_of_files
from keras_vitx.data.grain import Examples, grain_batches
from keras_vitx.data.pipelines import Pipelines, pipelines
from keras_vitx.data.predictions import decode_predictions
from keras_vitx.data.preprocessing import decode_image, preprocess_input
from keras_vitx.data.sources import Dataset, load_dataset, load_real
from keras_vitx.renamed import renamed_names

__getattr__ = renamed_names(
    __name__, open_source="load_dataset", open_real="load_real", Source="Dataset"
)
__all__ = [
    "Augmentation",
    "Dataset",
    "Examples",
    "FileBatch",
    "Mixing",
    "Pipelines",
    "batches_of_files",
    "decode_image",
    "decode_predictions",
    "grain_batches",
    "load_dataset",
    "load_real",
    "pipelines",
    "preprocess_input",
]
