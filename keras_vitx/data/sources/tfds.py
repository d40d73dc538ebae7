"""Sources from tensorflow-datasets, with one label per image."""

import contextlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vitx.data.sources.dataset import Dataset, Images, dataset_of
from keras_vitx.data.sources.names import split_of
from keras_vitx.text import needs_extra


class TfdsImages(Images):
    """Images of a split by their indices in `examples`, whose `image` is encoded."""

    def __init__(self, examples: Sequence[Mapping[str, Any]]):
        super().__init__(range(len(examples)))
        self.examples = examples

    def open(self, key: int) -> io.BytesIO:
        return io.BytesIO(self.examples[key]["image"])


def load_tfds(name: str) -> Dataset:
    """Load a dataset of tensorflow-datasets, downloaded and prepared if necessary.

    If possible, it is prepared as array_record, which does not need TensorFlow for reading.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        what = f'`source` "tfds:{name}" needs tensorflow-datasets'
        raise ImportError(needs_extra(what, "data")) from error
    builder = tfds.builder(name)
    if not builder.is_prepared():
        keep_tensorflow_off_the_gpu()
        if importlib.util.find_spec("array_record"):
            builder = tfds.builder(name, file_format="array_record")
        builder.download_and_prepare()
    splits = {}
    for split in builder.info.splits:
        if key := split_of(split):
            examples = _examples(builder, split)
            labels = np.array([int(example["label"]) for example in examples])
            if labels.min() >= 0:  # A test split without labels has -1.
                splits[key] = TfdsImages(examples), labels
    return dataset_of(f"tfds:{name}", splits, builder.info.features["label"].names)


def _examples(builder: Any, split: str) -> Sequence[Mapping[str, Any]]:
    """Return the examples of a split, whose images are encoded."""
    import tensorflow_datasets as tfds

    options = {"split": split, "decoders": {"image": tfds.decode.SkipDecoding()}}
    try:
        return builder.as_data_source(**options)
    except NotImplementedError:  # A format without random access.
        keep_tensorflow_off_the_gpu()
        return list(tfds.as_numpy(builder.as_dataset(**options)))


def keep_tensorflow_off_the_gpu() -> None:
    """Keep TensorFlow from reserving GPU memory when Keras runs on another backend."""
    import keras  # Slow, and not needed by worker processes.

    if keras.backend.backend() == "tensorflow":
        return
    # Raises RuntimeError if TensorFlow has already initialized the GPU.
    with contextlib.suppress(ImportError, RuntimeError):
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
