"""Sources of TFRecord shards, read without TensorFlow.

A shard is a series of records: the length (8 bytes, little-endian), its checksum (4 bytes), the
data, their checksum (4 bytes). The data are a `tf.train.Example` in the encoding of protocol
buffers: a map from names to lists of bytes, floats or integers. TensorFlow reads shards only in
order; here, an index of the positions of the images gives random access. Checksums are not
verified.
"""

import glob
import io
import mmap
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.data.preprocessing import read_image, read_picture
from keras_vitx.data.sources.splits import SPLITS, Dataset, Split, checked_labels, split_of

# Image and label: in ImageNet's shards, and as tensorflow-datasets writes them.
FEATURES = (("image/encoded", "image/class/label"), ("image", "label"))
NAMES_FILES = ("labels.txt", "label.labels.txt")
SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(sum(SPLITS.values(), ()))})(?=[-_.])", re.IGNORECASE)
VARINT, EIGHT_BYTES, BLOCK, FOUR_BYTES = 0, 1, 2, 5  # wire types of protocol buffers
BYTES_LIST, INTEGER_LIST = 1, 3  # fields of a feature


class RecordImages(Sequence):
    """Encoded images at known positions in files, decoded lazily to RGB.

    Args:
        shards: The files.
        index: The file of each image, its position and its length in bytes, int64 (n, 3).
    """

    def __init__(self, shards: Sequence[Path], index: np.ndarray):
        self.shards, self.index = shards, index

    def __len__(self) -> int:
        return len(self.index)

    def take(self, indices: np.ndarray) -> "RecordImages":
        """Return the images at `indices`."""
        return RecordImages(self.shards, self.index[indices])

    def id(self, index: int) -> str:
        """Return the file of an image and its position in bytes."""
        shard, position, _ = self.index[index].tolist()
        return f"{self.shards[shard]}, byte {position}"

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3). Raises OSError if the image can't be decoded."""
        return self._read(read_image, index)

    def picture(self, index: int) -> Image.Image:
        """Return the same as a picture of Pillow, of which a window can be cropped at less cost."""
        return self._read(read_picture, index)

    def _read(self, read: Callable, index: int) -> Any:
        shard, position, length = self.index[index].tolist()
        with self.shards[shard].open("rb") as file:
            file.seek(position)
            data = file.read(length)
        try:
            return read(io.BytesIO(data))
        except OSError as error:
            raise OSError(f"{self.id(index)}: {error}") from error


def shards_of(source: str) -> list[Path]:
    """Return the shards that a source names; an empty list if there are none.

    Args:
        source: A file or a folder of files with ".tfrecord" in their names, or a pattern of
            files, such as "imagenet/train-*".
    """
    path = Path(source).expanduser()
    if path.is_dir():
        found = path.glob("*.tfrecord*")
    elif path.is_file():
        found = [path] if ".tfrecord" in path.name else []
    else:
        found = map(Path, glob.glob(str(path)))
    return sorted(file for file in found if file.is_file())


def open_tfrecords(shards: Sequence[Path], name: str) -> Dataset:
    """Open TFRecord shards of encoded images (JPEG, PNG, ...) with one integer label each.

    The features are "image/encoded" and "image/class/label", as in ImageNet's shards, where labels
    may start at 1 and are then reduced by 1; or "image" and "label", as tensorflow-datasets
    writes them. A file labels.txt beside the shards may hold the class names, one per line.

    Shards with a name of a split (`SPLITS`) between separators, such as "valid-00000-of-00001",
    hold that split, all others training images. Opening reads all labels, but no image.

    Raises:
        ValueError: if the shards hold no such features, no training images, or fewer than two
            classes.
        OSError: if a file can't be read as TFRecords.
    """
    files: dict[str, list[Path]] = {}
    for shard in shards:
        found = SPLIT.findall(shard.name)
        files.setdefault(split_of(found[-1]) if found else "train", []).append(shard)
    if "train" not in files:
        raise ValueError(f"source: {name} has no training shards, only {', '.join(files)}.")
    parts = {part: _read(found) for part, found in files.items()}
    lowest = min(labels.min() for _, labels, _ in parts.values())
    from_one = lowest == 1 and all(may_start_at_one for _, _, may_start_at_one in parts.values())
    names = _class_names(shards[0].parent)
    classes = len(names) if names else None
    opened = {}
    for part, (images, labels, _) in parts.items():
        labels = checked_labels(labels - from_one, len(images), classes, f"labels of {name}")
        opened[part] = Split(images, labels)
    if len(np.unique(opened["train"].labels)) < 2:
        raise ValueError(f"source: expected at least two classes in {name}, found one.")
    names = names or tuple(
        map(str, range(1 + max(int(part.labels.max()) for part in opened.values())))
    )
    return Dataset(name, names, **opened)


def _class_names(folder: Path) -> tuple[str, ...] | None:
    for file in NAMES_FILES:
        if (folder / file).is_file():
            return tuple((folder / file).read_text().splitlines())
    return None


def _read(shards: list[Path]) -> tuple[RecordImages, np.ndarray, bool]:
    """Return the images and labels of shards, and whether labels may start at 1."""
    index, labels, names = [], [], set()
    for number, shard in enumerate(shards):
        for image, label, name in _examples(shard):
            index.append((number, image.start, image.stop - image.start))
            labels.append(label)
            names.add(name)
    if not labels:
        raise ValueError(f"source: there are no images in {', '.join(map(str, shards[:3]))}.")
    return RecordImages(shards, np.array(index)), np.array(labels), names == {FEATURES[0][1]}


def _examples(shard: Path) -> Iterator[tuple[slice, int, str]]:
    """Yield the position of each image of a shard, its label, and the name of that feature."""
    with shard.open("rb") as file:
        if not file.seek(0, io.SEEK_END):
            return
        # Images are skipped, not read: only the pages of other data are loaded.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = 0
            while start < len(data):
                try:
                    (length,) = struct.unpack_from("<Q", data, start)
                    record = slice(start + 12, start + 12 + length)
                    start = record.stop + 4
                    if start > len(data):
                        raise IndexError(f"a record of {length} bytes exceeds the file")
                    found = _image_and_label(data, _features(data, record), shard)
                except (IndexError, struct.error, UnicodeDecodeError) as error:
                    hint = " It is compressed." if data[:2] == b"\x1f\x8b" else ""
                    raise OSError(f"{shard} can't be read as TFRecords: {error}.{hint}") from error
                yield found


def _image_and_label(
    data: mmap.mmap, features: dict[str, slice], shard: Path
) -> tuple[slice, int, str]:
    for image_name, label_name in FEATURES:
        if image_name in features and label_name in features:
            images = _values(data, features[image_name], BYTES_LIST)
            labels = _values(data, features[label_name], INTEGER_LIST)
            if len(images) == len(labels) == 1:
                return images[0], _signed(labels[0]), label_name
    raise ValueError(
        f'source: expected one image and one integer label per example in {shard}, as "image" and '
        '"label" or "image/encoded" and "image/class/label". Found the features '
        f"{', '.join(sorted(features)) or 'of no example'}."
    )


def _features(data: mmap.mmap, record: slice) -> dict[str, slice]:
    """Return the position of each feature of a `tf.train.Example`, by name."""
    found = {}
    for _, features in _fields(data, record):
        for _, entry in _fields(data, features):
            parts = dict(_fields(data, entry))
            if not {1, 2} <= parts.keys():
                raise IndexError(f"no name and value of a feature at byte {entry.start}")
            found[data[parts[1]].decode()] = parts[2]
    return found


def _values(data: mmap.mmap, feature: slice, kind: int) -> list:
    """Return the values of a list in a feature: positions of bytes, or integers."""
    values = []
    for field, content in _fields(data, feature):
        if field != kind:
            continue
        for _, value in _fields(data, content):
            if kind == BYTES_LIST or not isinstance(value, slice):
                values.append(value)
            else:  # packed integers
                at = value.start
                while at < value.stop:
                    integer, at = _varint(data, at)
                    values.append(integer)
    return values


def _fields(data: mmap.mmap, message: slice) -> Iterator[tuple[int, slice | int]]:
    """Yield the number of each field of a message, and its integer or the position of its bytes."""
    if not isinstance(message, slice):
        raise IndexError("an integer in place of a message")
    at = message.start
    while at < message.stop:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
        elif wire in (BLOCK, EIGHT_BYTES, FOUR_BYTES):
            length, at = (
                _varint(data, at) if wire == BLOCK else (8 if wire == EIGHT_BYTES else 4, at)
            )
            value = slice(at, at + length)
            at += length
        else:
            raise IndexError(f"no protocol buffer at byte {at}")
        if at > message.stop:
            raise IndexError(f"a field of a record exceeds it at byte {at}")
        yield key >> 3, value


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return an integer of seven bits per byte, least significant first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
