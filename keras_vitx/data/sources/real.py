"""ImageNet-ReaL: all right labels of ImageNet's validation images (Beyer et al., 2020)."""

import json
import os
import re
from pathlib import Path

import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.data.sources.encoded import ImageFiles
from keras_vitx.data.sources.folders import image_files
from keras_vitx.data.sources.splits import Dataset, Split

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
    classes = len(imagenet_classes())
    try:
        listed = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"labels: {path} is not JSON: {error}.") from error
    if not isinstance(listed, list) or not all(
        isinstance(entry, list) and all(isinstance(c, int) and 0 <= c < classes for c in entry)
        for entry in listed
    ):
        raise ValueError(
            f"labels: expected a list of lists of integers in 0..{classes - 1} in {path}."
        )
    files, rows = [], []
    for file in image_files(folder):
        number = NUMBER.match(file.name)
        if number is None:
            continue
        index = int(number[1]) - 1
        if not 0 <= index < len(listed):
            raise ValueError(f"labels: {path} has {len(listed)} entries, none for {file.name}.")
        if listed[index]:
            row = np.zeros(classes, "float32")
            row[listed[index]] = 1 / len(set(listed[index]))
            files.append(file)
            rows.append(row)
    if not files:
        raise ValueError(
            f"source: {folder} has no image with labels named ILSVRC2012_val_00000001.JPEG, ..."
        )
    split = Split(ImageFiles(files), np.stack(rows))
    names = tuple(synset for synset, _ in imagenet_classes())
    return Dataset(str(folder), names, train=split, test=split, any_of=True)
