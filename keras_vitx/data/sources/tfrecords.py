"""Sources of TFRecord shards, which TensorFlow reads once to locate the images."""

import glob
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.data.sources.dataset import HINT, Dataset, Images, dataset_of
from keras_vitx.data.sources.names import numbers_of, split_in, text_of
from keras_vitx.data.sources.tfds import keep_tensorflow_off_the_gpu
from keras_vitx.text import needs_extra

# Image and label: of ImageNet's shards, and of tensorflow-datasets.
FEATURES = (("image/encoded", "image/class/label"), ("image", "label"))
NAMES = ("image/class/synset", "image/class/text")
NAMES_FILES = ("labels.txt", "label.labels.txt")
SHARD = re.compile(
    r"^[^.].*\.tfrecords?(?![a-z])(?!.*\.(txt|json|md|csv|pbtxt|index)$)", re.IGNORECASE
)


class RecordImages(Images):
    """Images within records, by keys (shard, offset in bytes, length)."""

    def open(self, key: tuple[Path, int, int]) -> io.BytesIO:
        shard, offset, length = key
        with shard.open("rb") as file:
            file.seek(offset)
            return io.BytesIO(file.read(length))

    def id(self, index: int) -> str:
        shard, offset, _ = self.keys[index]
        return f"{shard}, byte {offset}"


def shards_of(source: Path) -> list[Path]:
    """Return the shards of a file or directory (".tfrecord" in their names) or of a pattern."""
    if source.exists():
        files = source.iterdir() if source.is_dir() else [source]
        files = (file for file in files if SHARD.search(file.name))
    else:
        files = map(Path, glob.glob(str(source)))
    return sorted(file for file in files if file.is_file())


def load_tfrecords(
    shards: Sequence[Path], name: str, first_label: Literal[0, 1] | None = None
) -> Dataset:
    """Load TFRecord shards of encoded images (JPEG, PNG, ...) with one integer label each.

    The features are `FEATURES`. A shard belongs to the split in its name, or to training.

    "label" starts at 0. What "image/class/label" starts at is decided by, in this order,
    `first_label`; numbered lines of labels.txt beside the shards; the name of the class in each
    example (`NAMES`), found in labels.txt, else in ImageNet's synsets, else all that there are, in
    the order of their labels; a label 0; or a label that labels.txt has no line for otherwise. It
    is a ValueError if none of them does.
    """
    splits: dict[str, list[tuple]] = {}
    for shard in shards:
        splits.setdefault(split_in(shard.name) or "train", []).extend(_examples(shard))
    names, first_line = _class_names(shards[0].parent)
    first_label = first_line if first_label is None else first_label
    every = [example for examples in splits.values() for example in examples]
    label_of, names = _numbering({(label, *text) for _, label, *text in every}, names, first_label)
    loaded = {}
    for split, examples in splits.items():
        labels = np.array([label_of[label] for _, label, *_ in examples])
        loaded[split] = RecordImages([key for key, *_ in examples]), labels
    return dataset_of(name, loaded, names)


def _class_names(directory: Path) -> tuple[list[str] | None, int | None]:
    """Return the names in labels.txt, and the label of the first if lines are "0:daisy", ..."""
    files = [directory / file for file in NAMES_FILES]
    text = next((file.read_text("utf-8-sig") for file in files if file.is_file()), None)
    if text is None:
        return None, None
    lines = [text_of(line.strip()) for line in text.splitlines() if line.strip()]
    numbered = [line.partition(":") for line in lines]
    numbers = numbers_of(number for number, *_ in numbered) or [-1]
    if numbers != [*range(numbers[0], numbers[0] + len(lines))]:
        return lines, None
    return [name.strip() for *_, name in numbered], numbers[0]


def _numbering(
    found: set[tuple[int, str, str]], names: Sequence[str] | None, first_label: int | None
) -> tuple[dict[int, int], Sequence[str] | None]:
    """Return the index of each label, and the class names, from all (label, class, feature)."""
    text_by_label = {label: text for label, text, _ in sorted(found)}
    present, texts = list(text_by_label), list(text_by_label.values())
    if first_label is None and len(set(texts)) == len(found) and "" not in texts:
        synsets = [synset for synset, _ in imagenet_classes()]
        known = names or (synsets if set(texts) <= set(synsets) else texts)
        if set(texts) <= set(known):
            return {label: known.index(text) for label, text in text_by_label.items()}, known
    if first_label is None:
        is_imagenet = {feature for *_, feature in found} == {FEATURES[0][1]}
        if not is_imagenet or min(present) <= 0:
            first_label = 0
        elif names is not None and max(present) == len(names):
            first_label = 1
        else:
            raise ValueError(
                f"`first_label` must be 0 or 1, as {FEATURES[0][1]!r} starts at either. Received: "
                f"None, labels in {min(present)}..{max(present)}, and no names of classes. {HINT}"
            )
    return {label: label - first_label for label in present}, names


def _examples(shard: Path) -> Iterator[tuple[tuple[Path, int, int], int, str, str]]:
    """Yield the key of each image of a shard, its label, its class, and the label's feature."""
    keep_tensorflow_off_the_gpu()
    try:
        import tensorflow as tf
        from google.protobuf.message import DecodeError
    except ImportError as error:
        message = f"`source` {shard} needs TensorFlow, which reads TFRecords"
        raise ImportError(needs_extra(message, "data")) from error
    _check_lengths(shard)
    options = tf.data.Options()
    options.autotune.enabled = False  # Its thread takes a second to stop.
    records = tf.data.TFRecordDataset(str(shard)).with_options(options)
    start = 12  # A record follows its length and a checksum; another checksum follows it.
    try:
        for record in records.as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            for image_name, label_name in FEATURES:
                images = features[image_name].bytes_list.value if image_name in features else ()
                labels = features[label_name].int64_list.value if label_name in features else ()
                if len(images) == len(labels) == 1:
                    break
            else:
                raise ValueError(
                    f"`source` must have one image and one integer label per example in {shard}, "
                    'as "image" and "label" or "image/encoded" and "image/class/label". Received: '
                    f"the features {', '.join(sorted(features)) or 'of no example'}."
                )
            texts = [features[name].bytes_list.value for name in NAMES if name in features]
            text = next((text_of(text[0].decode("utf-8", "replace")) for text in texts if text), "")
            key = shard, start + record.index(images[0]), len(images[0])
            yield key, labels[0], text, label_name
            start += len(record) + 16
    except (tf.errors.OpError, DecodeError) as error:
        raise OSError(f"{shard} can't be read as TFRecords: {error!s:.200}.") from error


def _check_lengths(shard: Path) -> None:
    """Raise an OSError for a record longer than its shard, for which TensorFlow may crash."""
    position, size = 0, shard.stat().st_size
    with shard.open("rb") as file:
        while position < size:
            file.seek(position)
            position += int.from_bytes(file.read(8), "little") + 16
    if position > size:
        hint = " It is compressed." if shard.read_bytes()[:2] == b"\x1f\x8b" else ""
        raise OSError(f"{shard} can't be read as TFRecords: a record is truncated.{hint}")
