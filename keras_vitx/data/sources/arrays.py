"""Array sources: in memory, in an .npz file, or shipped with the package."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.data.preprocessing import as_uint8
from keras_vitx.data.sources.dataset import Dataset, dataset_of

FASHION_MNIST = Path(__file__).parents[1] / "fashion_mnist" / "sample.npz"
SPLITS = {"train": "train", "val": "validation", "test": "test"}
MAX_RATIO, MAX_SMALL = 100, 1 << 28
"""Times its size, or else bytes, that a compressed .npz file may expand to."""


def load_npz(path: Path, name: str) -> Dataset:
    """Load an .npz file with the arrays that `load_dataset` lists.

    One that expands to far more than its own size is an OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            expanded = sum(member.file_size for member in archive.infolist())
        if expanded > max(MAX_RATIO * path.stat().st_size, MAX_SMALL):
            raise ValueError(
                f"its arrays expand to {expanded:,} bytes, over {MAX_RATIO} times its size"
            )
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile and NumPy raise whatever a bad file provokes.
        raise OSError(f"{path} can't be read as an .npz file: {error!s:.200}") from error
    keys = {split: (f"x_{split}", f"y_{split}") for split in SPLITS}
    pairs = {split: pair for split, pair in keys.items() if any(key in arrays for key in pair)}
    if "train" not in pairs or not all(key in arrays for pair in pairs.values() for key in pair):
        raise ValueError(
            "`source` must hold x_train and y_train, and optional pairs x_val, y_val and "
            f"x_test, y_test in {path}, found {', '.join(sorted(arrays)) or 'nothing'}."
        )
    names = arrays.get("class_names")
    names = None if names is None else tuple(map(str, names))
    return _dataset(name, {split: (arrays[x], arrays[y]) for split, (x, y) in pairs.items()}, names)


def load_arrays(pair: tuple) -> Dataset:
    """Load (images, labels), or ((x_train, y_train), (x_val, y_val)[, (x_test, y_test)])."""
    if len(pair) in (2, 3) and all(isinstance(each, tuple) and len(each) == 2 for each in pair):
        return _dataset("arrays", dict(zip(SPLITS, pair, strict=False)))
    if len(pair) == 2:
        return _dataset("arrays", {"train": pair})
    raise ValueError(
        "`source` must be (images, labels) or ((x_train, y_train), (x_val, y_val)), with "
        f"(x_test, y_test) as an optional third pair. Received: {len(pair)} items."
    )


def _dataset(name: str, pairs: dict[str, tuple], class_names: Any = None) -> Dataset:
    splits = {
        SPLITS[split]: (_checked(images, f"Images of the {SPLITS[split]} split"), labels)
        for split, (images, labels) in pairs.items()
    }
    return dataset_of(name, splits, class_names)


def _checked(images: Any, what: str) -> np.ndarray:
    """Return images as uint8 (n, height, width, channels)."""
    try:
        images = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"{what} must have one size.") from error
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or not images.size:
        raise ValueError(
            f"{what} must be (n, height, width) or (n, height, width, channels), and not "
            f"empty. Received: shape {images.shape}."
        )
    return as_uint8(images, what)
