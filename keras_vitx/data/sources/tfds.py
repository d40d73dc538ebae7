"""Sources from tensorflow-datasets, with one label per image."""

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from PIL import Image

from keras_vitx.data.preprocessing import read_image, read_picture
from keras_vitx.data.sources.splits import Dataset, Split, checked_labels, split_of
from keras_vitx.text import nearest, needs_extra

log = logging.getLogger(__name__)


class EncodedImages(Sequence):
    """Lazily decoded images.

    Args:
        examples: Examples of tensorflow-datasets, whose `image` is an encoded file.
        indices: Indices of the selected examples, (n,).
        name: Name of the images in errors.
    """

    def __init__(self, examples: Sequence[Mapping[str, Any]], indices: np.ndarray, name: str):
        self.examples, self.indices, self.name = examples, indices, name

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: np.ndarray) -> "EncodedImages":
        """Return the images at `indices`."""
        return EncodedImages(self.examples, self.indices[indices], self.name)

    def id(self, index: int) -> int:
        """Return the index of an image in its split."""
        return int(self.indices[index])

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3). Raises OSError if the image can't be decoded."""
        return self._read(read_image, index)

    def picture(self, index: int) -> Image.Image:
        """Return the same as a picture of Pillow, of which a window can be cropped at less cost."""
        return self._read(read_picture, index)

    def _read(self, read: Callable, index: int) -> Any:
        example = int(self.indices[index])
        try:
            return read(io.BytesIO(self.examples[example]["image"]))
        except OSError as error:
            raise OSError(f"{self.name}, example {example}: {error}") from error


def open_tfds(name: str, data_dir: str | os.PathLike | None) -> Dataset:
    """Open a dataset by name, e.g. "cifar10" or "cats_vs_dogs:4.0.1", downloading if necessary.

    If the package array_record is installed, the dataset is prepared in that format, and
    examples are read from its files on demand, without TensorFlow. A dataset that was
    prepared as TFRECORD has no random access: its encoded images are kept in memory. All
    labels are read at once.

    Raises:
        ValueError: if the name is unknown, or the dataset doesn't consist of images with
            one class label each.
        OSError: if its files can't be read.
        ImportError: if tensorflow-datasets is missing or can't be imported.
    """
    tfds, builder = _library(name), builder_of(name, data_dir)
    features = builder.info.features
    features = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    if not (
        isinstance(features.get("image"), tfds.features.Image)
        and isinstance(features.get("label"), tfds.features.ClassLabel)
    ):
        raise ValueError(
            f'source: "tfds:{name}" is not a set of images with a class label each: expected the '
            f"features image and label, got {builder.info.features!r}."
        )
    if not builder.is_prepared():
        keep_tensorflow_off_the_gpu()
        builder.download_and_prepare()

    # `tfds.testing.mock_data` has no splits.
    splits = list(builder.info.splits) or ["train"]
    if "train" not in splits:
        raise ValueError(f'source: "tfds:{name}" has no split "train", only {", ".join(splits)}.')
    classes = features["label"].num_classes
    names = tuple(features["label"].names or map(str, range(classes)))
    parts = {
        split: _read(tfds, builder, name, classes)
        for name in splits
        if (split := split_of(name)) is not None
    }
    return Dataset(f"tfds:{name}", names, **parts)


def _library(name: str):
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            needs_extra(f'source: "tfds:{name}" needs tensorflow-datasets', "data")
        ) from error
    # The library only logs a failed import of its own modules.
    if not hasattr(tfds, "builder"):
        raise ImportError(
            needs_extra(f'source: "tfds:{name}": tensorflow-datasets can\'t be imported', "data")
        )
    return tfds


def builder_of(name: str, data_dir: str | os.PathLike | None) -> Any:
    """Return the builder of a dataset, which prefers the format array_record.

    Raises:
        ValueError: if the name is unknown.
        ImportError: if tensorflow-datasets is missing or can't be imported.
    """
    tfds = _library(name)
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if not builder.is_prepared() and importlib.util.find_spec("array_record"):
            builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        raise ValueError(
            f"source: tensorflow-datasets has no {name!r}. {nearest(name, known)}"
        ) from error
    return builder


def _read(tfds, builder, split: str, classes: int) -> Split | None:
    """Return the images and labels of a split; None for a split without labels."""
    name = f"{builder.info.full_name}, split {split!r}"
    encoded = {"image": tfds.decode.SkipDecoding()}
    try:
        try:
            examples = builder.as_data_source(split=split, decoders=encoded)
        except NotImplementedError:  # a format without random access
            keep_tensorflow_off_the_gpu()
            dataset = builder.as_dataset(split=split, decoders=encoded)
            examples = [
                {key: example[key] for key in ("image", "label")}
                for example in tfds.as_numpy(dataset)
            ]
        labels = np.array([int(examples[i]["label"]) for i in range(len(examples))])
    except Exception as error:  # each format raises its own types
        raise OSError(f"{name} can't be read from {builder.data_dir}: {error}") from error
    if len(labels) and labels.max() < 0:
        log.warning("%s has no labels and is skipped.", name)
        return None
    labels = checked_labels(labels, len(labels), classes, f"labels of {name}")
    return Split(EncodedImages(examples, np.arange(len(labels)), name), labels)


def keep_tensorflow_off_the_gpu() -> None:
    """Keep TensorFlow from reserving GPU memory when Keras runs on another backend."""
    if keras.backend.backend() == "tensorflow":
        return
    # Raises RuntimeError if TensorFlow has already initialized the GPU.
    with contextlib.suppress(ImportError, RuntimeError):
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
