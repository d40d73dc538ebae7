"""Sources that are datasets of tensorflow-datasets: images with one label each."""

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.data.parts import Part, Source, checked_labels, set_aside
from keras_vitx.data.preprocessing import decode_image
from keras_vitx.text import nearest, needs_extra

log = logging.getLogger(__name__)


class EncodedImages(Sequence):
    """Images that are decoded when they are asked for.

    Args:
        examples: Examples of tensorflow-datasets, whose `image` is an encoded file.
        indices: Those that are meant, (n,).
        name: What they are called in an error.
    """

    def __init__(self, examples: Sequence[Mapping[str, Any]], indices: np.ndarray, name: str):
        self.examples, self.indices, self.name = examples, indices, name

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: np.ndarray) -> "EncodedImages":
        """Return the images at `indices`."""
        return EncodedImages(self.examples, self.indices[indices], self.name)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3); raises OSError when it can't be decoded."""
        example = int(self.indices[index])
        try:
            return decode_image(io.BytesIO(self.examples[example]["image"]))
        except OSError as error:
            raise OSError(f"{self.name}, example {example}: {error}") from error


def open_tfds(
    name: str, validation_split: float, seed: int, data_dir: str | os.PathLike | None
) -> Source:
    """Open a dataset by its name, "cifar10" or "cats_vs_dogs:4.0.1"; download it if need be.

    It is prepared as array_record where that package is installed, and examples
    are then read from the files when they are asked for, without TensorFlow. A
    dataset that was prepared as TFRECORD has no random access: its encoded
    images are kept in memory. All labels are read now.

    Raises:
        ValueError: when the name is unknown, or the dataset isn't one of images
            with a class label each.
        OSError: when its files can't be read.
        ImportError: when tensorflow-datasets is missing or can't be imported.
    """
    tfds = _library(name)
    builder = _builder(tfds, name, data_dir)
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
        _keep_tensorflow_off_the_gpu()
        builder.download_and_prepare()

    # `tfds.testing.mock_data` knows no splits.
    splits = list(builder.info.splits) or ["train"]
    if "train" not in splits:
        raise ValueError(f'source: "tfds:{name}" has no split "train", only {", ".join(splits)}.')
    classes = features["label"].num_classes
    names = tuple(features["label"].names or map(str, range(classes)))
    parts = {
        part: _read(tfds, builder, split, classes)
        for split, part in (
            ("train", "train"),
            ("val", "validation"),
            ("validation", "validation"),
            ("test", "test"),
        )
        if split in splits
    }
    if parts.get("validation") is None:
        parts["train"], parts["validation"] = set_aside(parts["train"], validation_split, seed)
    return Source(f"tfds:{name}", names, **parts)


def _library(name: str):
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            needs_extra(f'source: "tfds:{name}" needs tensorflow-datasets', "data")
        ) from error
    # The library logs what it fails to import of itself, and goes on.
    if not hasattr(tfds, "builder"):
        raise ImportError(
            needs_extra(f'source: "tfds:{name}": tensorflow-datasets can\'t be imported', "data")
        )
    return tfds


def _builder(tfds, name: str, data_dir):
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


def _read(tfds, builder, split: str, classes: int) -> Part | None:
    """Return the images of a split and their labels; None for a split without labels."""
    name = f"{builder.info.full_name}, split {split!r}"
    encoded = {"image": tfds.decode.SkipDecoding()}
    try:
        try:
            examples = builder.as_data_source(split=split, decoders=encoded)
        except NotImplementedError:  # a format without random access
            _keep_tensorflow_off_the_gpu()
            dataset = builder.as_dataset(split=split, decoders=encoded)
            examples = [
                {key: example[key] for key in ("image", "label")}
                for example in tfds.as_numpy(dataset)
            ]
        labels = np.array([int(examples[i]["label"]) for i in range(len(examples))])
    except Exception as error:  # each format has errors of its own
        raise OSError(f"{name} can't be read from {builder.data_dir}: {error}") from error
    if len(labels) and labels.max() < 0:
        log.warning("%s has no labels and is left out.", name)
        return None
    labels = checked_labels(labels, len(labels), classes, f"labels of {name}")
    return Part(EncodedImages(examples, np.arange(len(labels)), name), labels)


def _keep_tensorflow_off_the_gpu() -> None:
    """Leave the memory of the GPU to the backend of Keras, if it is another one."""
    if keras.backend.backend() == "tensorflow":
        return
    # Too late where TensorFlow has begun to use it.
    with contextlib.suppress(ImportError, RuntimeError):
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
