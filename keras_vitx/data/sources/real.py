"""ImageNet-ReaL: all right labels of ImageNet's validation images (Beyer et al., 2020)."""

import json
import os
import re
from pathlib import Path

import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.data.sources.dataset import Dataset, ImageFiles, Split
from keras_vitx.data.sources.folders import image_files

NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def load_real(folder: str | os.PathLike, labels: str | os.PathLike) -> Dataset:
    """Load ImageNet's validation images with the labels of ImageNet-ReaL.

    Images without a label are left out, as in the paper. `keras_vitx.evaluate` counts a
    prediction as right if it is any of the labels.

    Args:
        folder: The images, `ILSVRC2012_val_00000001.JPEG`, ..., with or without a sub-folder
            per class.
        labels: The published `real.json`: a list of the labels of each image, in the order of
            their numbers.

    Returns:
        A dataset whose test split has float32 labels (n, 1000): rows with the same
        probability for each right class.

    Raises:
        ValueError: if the file is not such a list, or has no entry for an image.
        OSError: if the file can't be read.
    """
    folder, path = Path(folder).expanduser(), Path(labels).expanduser()
    names = tuple(synset for synset, _ in imagenet_classes())
    try:
        listed = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"`labels`: {path} is not JSON: {error}.") from error
    if not isinstance(listed, list) or not all(map(_is_entry, listed)):
        raise ValueError(f"`labels` must be lists of integers in 0..999. Received: {path}.")
    files, rows = [], []
    for file in image_files(folder):
        number = NUMBER.match(file.name)
        index = int(number[1]) - 1 if number else None
        if index is not None and not 0 <= index < len(listed):
            raise ValueError(f"`labels`: {path} has {len(listed)} entries, none for {file.name}.")
        if index is not None and listed[index]:
            right = np.isin(np.arange(len(names)), listed[index])
            files.append(file)
            rows.append(np.float32(right / right.sum()))
    if not files:
        raise ValueError(
            f"`folder` {folder} has no image with labels named ILSVRC2012_val_00000001.JPEG, ..."
        )
    split = Split(ImageFiles(files), np.stack(rows))
    return Dataset(str(folder), names, train=split, test=split, any_of=True)


def _is_entry(entry) -> bool:
    return isinstance(entry, list) and all(isinstance(c, int) and 0 <= c < 1000 for c in entry)
