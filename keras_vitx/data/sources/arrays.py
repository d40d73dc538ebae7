"""Sources that are arrays: in memory, in an .npz file, or shipped with the package."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.checks import check
from keras_vitx.data.images import with_channel_axis
from keras_vitx.data.sources.dataset import ArrayImages, Dataset, dataset_of

FASHION_MNIST = Path(__file__).parents[1] / "fashion_mnist" / "sample.npz"
KEYS = {
    "train": [("x_train", "y_train"), ("train_images", "train_labels")],  # Keras's, MedMNIST's
    "validation": [("x_val", "y_val"), ("val_images", "val_labels")],
    "test": [("x_test", "y_test"), ("test_images", "test_labels")],
}


def load_npz(path: Path, name: str) -> Dataset:
    """Load an .npz file of arrays, see `load_dataset`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # NumPy raises many types of them on damaged files.
        raise OSError(f"{path} can't be read as an .npz file: {error}") from error
    pairs = {
        split: (arrays[x], arrays[y])
        for split, keys in KEYS.items()
        for x, y in keys
        if x in arrays
    }
    rule = "`source` must hold x_train and y_train, x_test and y_test, or train_images and so on"
    check(pairs, f"{rule}, in {path}.", [*arrays])
    return _dataset(name, pairs, arrays.get("class_names"))


def load_arrays(pairs: tuple) -> Dataset:
    """Load (images, labels), or ((x_train, y_train), (x_val, y_val)[, (x_test, y_test)])."""
    several = all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    return _dataset("arrays", dict(zip(KEYS, pairs if several else [pairs], strict=False)))


def _dataset(name: str, pairs: dict[str, tuple], class_names: Any = None) -> Dataset:
    splits = {}
    for split, (images, labels) in pairs.items():
        rule = "`source` must have images (n, height, width[, channels]), or use `from_files`."
        images = with_channel_axis(np.asarray(images), 4, rule)
        if images.dtype != np.uint8:
            low, high = images.min(), images.max()
            rule = f"Images of the {split} split must be uint8 or floats in 0..1, not normalized."
            is_unit = images.dtype.kind == "f" and low >= 0 and high <= 1
            check(is_unit, rule, f"{images.dtype} in {low:g}..{high:g}")
        splits[split] = ArrayImages(images), labels
    return dataset_of(name, splits, class_names)
