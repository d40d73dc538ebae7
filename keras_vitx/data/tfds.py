"""Sources that are datasets of tensorflow-datasets: images with one label each."""

import io
import logging
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_vitx.data.parts import Part, Source, checked_labels, set_aside
from keras_vitx.data.preprocessing import decode_image
from keras_vitx.text import nearest, needs_extra

VALIDATION_SPLITS = ("validation", "val")
log = logging.getLogger(__name__)


class Record(NamedTuple):
    """Where the content of one record stands in a TFRecord file."""

    path: str
    start: int
    length: int

    def read(self):
        """Return the record as a tf.train.Example."""
        import tensorflow as tf

        with open(self.path, "rb") as file:
            file.seek(self.start)
            return tf.train.Example.FromString(file.read(self.length))


class RecordImages(Sequence):
    """Images that are read from their records, and decoded, when they are asked for."""

    def __init__(self, records: Sequence[Record]):
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def take(self, indices: np.ndarray) -> "RecordImages":
        """Return the images at `indices`."""
        return RecordImages([self.records[index] for index in indices])

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3); raises OSError when it can't be decoded."""
        record = self.records[index]
        image = record.read().features.feature["image"].bytes_list.value[0]
        try:
            return decode_image(io.BytesIO(image))
        except OSError as error:
            raise OSError(f"{record.path}, byte {record.start}: {error}") from error


def open_tfds(name: str, validation_split: float, seed: int, data_dir: str | None) -> Source:
    """Open a dataset by its name, "cifar10" or "cats_vs_dogs:4.0.1"; download it if need be.

    The records stay in their files and are read when asked for, in any order.
    The labels are read now, which is one pass over the files.

    Raises:
        ValueError: when the name is unknown, or the dataset isn't one of images
            with a class label each.
        OSError: when its files can't be read.
        ImportError: when tensorflow-datasets is missing.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            needs_extra(f'source: "tfds:{name}" needs tensorflow-datasets', "data")
        ) from error

    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        raise ValueError(
            f"source: tensorflow-datasets has no {name!r}. {nearest(name, known)}"
        ) from error
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
    builder.download_and_prepare()
    if builder.info.file_format is not tfds.core.FileFormat.TFRECORD:
        raise ValueError(
            f'source: "tfds:{name}" was prepared as {builder.info.file_format.value}; '
            "prepare it as tfrecord."
        )

    splits = builder.info.splits
    if "train" not in splits:
        raise ValueError(f'source: "tfds:{name}" has no split "train", only {", ".join(splits)}.')
    classes = features["label"].num_classes
    names = tuple(features["label"].names or map(str, range(classes)))
    train = _read(splits["train"], classes)
    found = [split for split in VALIDATION_SPLITS if split in splits]
    if found:
        validation = _read(splits[found[0]], classes)
    else:
        train, validation = set_aside(train, validation_split, seed)
    test = _read(splits["test"], classes) if "test" in splits else None
    return Source(f"tfds:{name}", names, train, validation, test)


def _read(split, classes: int) -> Part | None:
    """Return the images of a split and their labels; None for a split without labels."""
    import tensorflow as tf

    records, labels = [], []
    for path in map(str, split.filepaths):
        with open(path, "rb") as file:
            # A record is its length, a checksum, the content, and another checksum.
            while head := file.read(12):
                length = struct.unpack("<Qxxxx", head)[0] if len(head) == 12 else None
                start = file.tell()
                content = b"" if length is None else file.read(length + 4)[:-4]
                if len(content) != length:
                    raise OSError(f"{path} is cut off at byte {file.tell()}.")
                example = tf.train.Example.FromString(content)
                labels.append(example.features.feature["label"].int64_list.value[0])
                records.append(Record(path, start, length))
    if labels and max(labels) < 0:
        log.warning("The split %r has no labels; it is left out.", split.name)
        return None
    labels = checked_labels(labels, len(records), classes, f"labels of {split.name!r}")
    return Part(RecordImages(records), labels)
