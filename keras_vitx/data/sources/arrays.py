"""Sources that are arrays: in memory, in an .npz file, or shipped with the package."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.data.images import check_pixels
from keras_vitx.data.sources.dataset import ArrayImages, Dataset, dataset_of

FASHION_MNIST = Path(__file__).parents[1] / "fashion_mnist" / "sample.npz"
KEYS = {
    split: [(f"x_{name}", f"y_{name}"), (f"{name}_images", f"{name}_labels")]  # Keras's, MedMNIST's
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test"))
}
MAX_RATIO, MAX_SMALL = 100, 1 << 28
"""Maximum expansion of a compressed .npz file: times its size, or bytes if that is more."""


def load_npz(path: Path, name: str) -> Dataset:
    """Load an .npz file of arrays, see `load_dataset`; an OSError if it expands excessively."""
    try:
        with np.load(path, allow_pickle=False) as file:
            expanded = sum(member.file_size for member in file.zip.infolist())
            if expanded > max(MAX_RATIO * path.stat().st_size, MAX_SMALL):
                raise ValueError(
                    f"its arrays expand to {expanded:,} bytes, over {MAX_RATIO} times its size"
                )
            arrays = dict(file)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # NumPy raises many types of errors on damaged files.
        raise OSError(f"{path} can't be read as an .npz file: {error!s:.200}") from error
    pairs = {
        split: keys
        for split, options in KEYS.items()
        for keys in options
        if not arrays.keys().isdisjoint(keys)
    }
    if not pairs or not all(arrays.keys() >= set(keys) for keys in pairs.values()):
        raise ValueError(
            "`source` must hold pairs x_train and y_train, x_val and y_val, x_test and y_test, or "
            f"train_images and train_labels, ..., at least one, in {path}. Received: "
            f"{', '.join(sorted(arrays)) or 'nothing'}."
        )
    names = arrays.get("class_names")
    names = None if names is None else tuple(map(str, names))
    return _dataset(name, {split: (arrays[x], arrays[y]) for split, (x, y) in pairs.items()}, names)


def load_arrays(pair: tuple) -> Dataset:
    """Load (images, labels), or ((x_train, y_train), (x_val, y_val)[, (x_test, y_test)])."""
    if len(pair) in (2, 3) and all(isinstance(item, tuple) and len(item) == 2 for item in pair):
        return _dataset("arrays", dict(zip(KEYS, pair, strict=False)))
    if len(pair) == 2:
        return _dataset("arrays", {"train": pair})
    raise ValueError(
        "`source` must be (images, labels) or ((x_train, y_train), (x_val, y_val)), with "
        f"(x_test, y_test) as an optional third pair. Received: {len(pair)} items."
    )


def _dataset(name: str, pairs: dict[str, tuple], class_names: Any = None) -> Dataset:
    splits = {}
    for split, (images, labels) in pairs.items():
        what = f"Images of the {split} split"
        try:
            images = np.asarray(images)
        except ValueError as error:
            raise ValueError(f"{what} must have one size. Received: several.") from error
        if images.ndim == 3:
            images = images[..., None]
        if images.ndim != 4 or not images.size:
            raise ValueError(
                f"{what} must be (n, height, width) or (n, height, width, channels), and not "
                f"empty. Received: shape {images.shape}. Names of files are a table (.csv)."
            )
        check_pixels(images, what)
        splits[split] = ArrayImages(images), labels
    return dataset_of(name, splits, class_names)
