"""Sources from tensorflow-datasets, with one label per image."""

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vitx.data.sources.dataset import Dataset, Images, dataset_of
from keras_vitx.data.sources.names import split_of
from keras_vitx.text import nearest, needs_extra

log = logging.getLogger(__name__)


class TfdsImages(Images):
    """Images of a split by their indices in `examples`, whose `image` is encoded."""

    def __init__(self, examples: Sequence[Mapping[str, Any]], split: str):
        super().__init__(range(len(examples)))
        self.examples, self.split = examples, split

    def open(self, key: int) -> io.BytesIO:
        return io.BytesIO(self.examples[key]["image"])

    def id(self, index: int) -> str:
        return f"{self.split}, example {self.keys[index]}"

    def name(self, index: int) -> str:
        return str(self.keys[index])


def load_tfds(name: str, data_dir: str | os.PathLike | None) -> Dataset:
    """Load a dataset of tensorflow-datasets, downloaded and prepared if necessary.

    If possible, it is prepared as array_record, which does not need TensorFlow for reading.
    """
    builder = builder_of(name, data_dir)
    label = builder.info.features["label"]
    loaded = {}
    # `tfds.testing.mock_data` has no splits.
    for split in list(builder.info.splits) or ["train"]:
        if key := split_of(split):
            images, labels = _read(builder, split)
            if len(labels) and labels.max() < 0:
                log.warning("%s has no labels and is skipped.", images.split)
            else:
                loaded[key] = images, labels
    names = label.names or map(str, range(label.num_classes))
    return dataset_of(f"tfds:{name}", loaded, list(names))


def builder_of(name: str, data_dir: str | os.PathLike | None) -> Any:
    """Return a prepared builder, downloaded if necessary; a ValueError without images or labels."""
    try:
        import tensorflow_datasets as tfds

        create = tfds.builder  # A failed import of its own modules is only logged.
    except (ImportError, AttributeError) as error:
        message = f'`source` "tfds:{name}" needs tensorflow-datasets, which can\'t be imported'
        raise ImportError(needs_extra(message, "data")) from error
    try:
        builder = create(name, data_dir=data_dir)
        if not builder.is_prepared() and importlib.util.find_spec("array_record"):
            builder = create(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        raise ValueError(
            f"`source` must be a dataset of tensorflow-datasets after `tfds:`. Received: {name!r}. "
            f"{nearest(name, known)}"
        ) from error
    found = builder.info.features
    found = dict(found.items()) if isinstance(found, tfds.features.FeaturesDict) else {}
    kinds = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
    if not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise ValueError(
            f'`source` "tfds:{name}" must have the features image and label: Image and ClassLabel. '
            f"Received: {builder.info.features!r}."
        )
    if not builder.is_prepared():
        keep_tensorflow_off_the_gpu()
        builder.download_and_prepare()
    return builder


def _read(builder, split: str) -> tuple[TfdsImages, np.ndarray]:
    """Return the images and labels of a split."""
    import tensorflow_datasets as tfds

    name = f"{builder.info.full_name}, split {split!r}"
    encoded = {"image": tfds.decode.SkipDecoding()}
    try:
        try:
            examples = builder.as_data_source(split=split, decoders=encoded)
        except NotImplementedError:  # A format without random access.
            keep_tensorflow_off_the_gpu()
            examples = list(tfds.as_numpy(builder.as_dataset(split=split, decoders=encoded)))
        labels = np.array([int(examples[i]["label"]) for i in range(len(examples))])
    except Exception as error:  # Each format raises its own types.
        raise OSError(f"{name} can't be read from {builder.data_dir}: {error}") from error
    return TfdsImages(examples, name), labels


def keep_tensorflow_off_the_gpu() -> None:
    """Keep TensorFlow from reserving GPU memory when Keras runs on another backend."""
    import keras  # Slow, and not needed by worker processes.

    if keras.backend.backend() == "tensorflow":
        return
    # Raises RuntimeError if TensorFlow has already initialized the GPU.
    with contextlib.suppress(ImportError, RuntimeError):
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
