"""Sources of TFRecord shards, which TensorFlow reads once to locate the images."""

import glob
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_vitx.data.sources.dataset import SPLITS, Dataset, EncodedImages, dataset_of, split_of
from keras_vitx.data.sources.tfds import keep_tensorflow_off_the_gpu
from keras_vitx.text import needs_extra

# Image and label: of ImageNet's shards, and of tensorflow-datasets.
FEATURES = (("image/encoded", "image/class/label"), ("image", "label"))
NAMES_FILES = ("labels.txt", "label.labels.txt")
SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(sum(SPLITS.values(), ()))})(?=[-_.])", re.IGNORECASE)


class RecordImages(EncodedImages):
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
    if source.is_dir():
        files = source.glob("*.tfrecord*")
    elif source.is_file():
        files = [source] if ".tfrecord" in source.name else []
    else:
        files = map(Path, glob.glob(str(source)))
    return sorted(file for file in files if file.is_file())


def load_tfrecords(shards: Sequence[Path], name: str) -> Dataset:
    """Load TFRecord shards of encoded images (JPEG, PNG, ...) with one integer label each.

    The features are `FEATURES`. Labels of ImageNet's shards that start at 1 are reduced by 1. A
    file labels.txt beside the shards may hold the class names, one per line. A shard with the name
    of a split between separators, such as "valid-00000-of-00001", belongs to that split, others are
    training images.
    """
    splits: dict[str, list[tuple]] = {}
    for shard in shards:
        names = SPLIT.findall(shard.name)
        split = split_of(names[-1]) if names else "train"
        splits.setdefault(split, []).extend(_examples(shard))
    all_examples = [example for examples in splits.values() for example in examples]
    is_imagenet = {feature for *_, feature in all_examples} == {FEATURES[0][1]}
    first_label = int(is_imagenet and min(label for _, label, _ in all_examples) == 1)
    loaded = {}
    for split, examples in splits.items():
        labels = np.array([label for _, label, _ in examples]) - first_label
        loaded[split] = RecordImages([key for key, _, _ in examples]), labels
    files = [shards[0].parent / file for file in NAMES_FILES]
    names = next((f.read_text("utf-8").splitlines() for f in files if f.is_file()), None)
    return dataset_of(name, loaded, names)


def _examples(shard: Path) -> Iterator[tuple[tuple[Path, int, int], int, str]]:
    """Yield the key of each image of a shard, its label, and the name of the label's feature."""
    keep_tensorflow_off_the_gpu()
    try:
        import tensorflow as tf
        from google.protobuf.message import DecodeError
    except ImportError as error:
        message = f"`source` {shard} needs TensorFlow, which reads TFRecords"
        raise ImportError(needs_extra(message, "data")) from error
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
            yield (shard, start + record.index(images[0]), len(images[0])), labels[0], label_name
            start += len(record) + 16
    except (tf.errors.OpError, DecodeError) as error:
        hint = " It is compressed." if shard.read_bytes()[:2] == b"\x1f\x8b" else ""
        raise OSError(f"{shard} can't be read as TFRecords: {error!s:.200}.{hint}") from error
