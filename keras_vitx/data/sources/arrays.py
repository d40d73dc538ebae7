"""Array sources: in memory, in an .npz file, or shipped with the package."""

import zipfile
from pathlib import Path

import numpy as np

from keras_vitx.data.preprocessing import as_uint8
from keras_vitx.data.sources.splits import Dataset, Split, checked_labels, number_of_classes

FASHION_MNIST = Path(__file__).parents[1] / "fashion_mnist" / "sample.npz"
SPLITS = {"train": "training", "val": "validation", "test": "test"}
MAX_RATIO, MAX_SMALL = 100, 1 << 28
"""Times its size, or else bytes, that a compressed .npz file may expand to."""


def load_fashion_mnist() -> Dataset:
    """Load the shipped sample of Fashion-MNIST: 5,000 training images and 1,000 test images."""
    return load_npz(FASHION_MNIST, name="fashion_mnist")


def load_npz(path: Path, name: str | None = None) -> Dataset:
    """Load an .npz file with x_train and y_train, and optional x_val, y_val, x_test, y_test.

    It may also hold `class_names`.

    Raises:
        ValueError: if arrays are missing or inconsistent.
        OSError: if the file can't be read.
    """
    try:
        _check_expanded(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile and NumPy raise whatever a bad file provokes.
        raise OSError(f"{path} can't be read as an .npz file: {error!s:.200}") from error
    found = ", ".join(sorted(arrays)) or "nothing"
    pairs = {}
    for split in SPLITS:
        present = [key in arrays for key in (f"x_{split}", f"y_{split}")]
        if any(present) != all(present) or (split == "train" and not any(present)):
            raise ValueError(
                "`source` must hold x_train and y_train, and optional pairs x_val, y_val and "
                f"x_test, y_test in {path}, found {found}."
            )
        if all(present):
            pairs[split] = arrays[f"x_{split}"], arrays[f"y_{split}"]
    names = arrays.get("class_names")
    names = None if names is None else tuple(map(str, names))
    return _load(pairs, name or str(path), names)


def _check_expanded(path: Path) -> None:
    """Check that the members of an archive don't expand to far more than its own size."""
    with zipfile.ZipFile(path) as archive:
        expanded = sum(member.file_size for member in archive.infolist())
    if expanded > max(MAX_RATIO * path.stat().st_size, MAX_SMALL):
        raise ValueError(
            f"its arrays expand to {expanded:,} bytes, over {MAX_RATIO} times its size"
        )


def load_arrays(pair: tuple) -> Dataset:
    """Load (images, labels), or ((x_train, y_train), (x_val, y_val)[, (x_test, y_test)]).

    The class names are the integers up to the largest label.

    Raises:
        ValueError: if the images or the labels are invalid.
    """
    if len(pair) in (2, 3) and all(isinstance(each, tuple) and len(each) == 2 for each in pair):
        pairs = dict(zip(SPLITS, pair, strict=False))
    elif len(pair) == 2:
        pairs = {"train": pair}
    else:
        raise ValueError(
            "`source` must be (images, labels) or ((x_train, y_train), (x_val, y_val)), with "
            f"(x_test, y_test) as an optional third pair. Received: {len(pair)} items."
        )
    return _load(pairs, "arrays", None)


def _load(pairs: dict[str, tuple], name: str, class_names: tuple[str, ...] | None) -> Dataset:
    known = len(class_names) if class_names else None
    splits = {
        key: _split(*pair, known, f"of the {SPLITS[key]} split") for key, pair in pairs.items()
    }
    labels = [split.labels for split in splits.values()]
    if len({(each.dtype.kind, each.shape[1:]) for each in labels}) > 1:
        forms = ", ".join(f"{each.dtype} {each.shape}" for each in labels)
        raise ValueError(f"Labels must have one form in all splits. Received: {forms}.")
    if labels[0].dtype.kind == "i" and len(np.unique(labels[0])) < 2:
        raise ValueError(
            f"`source` must have at least two classes. Received: every label is {labels[0][0]}."
        )
    classes = number_of_classes(labels)
    if class_names is None and classes is not None:
        class_names = tuple(map(str, range(classes)))
    return Dataset(name, class_names, splits["train"], splits.get("val"), splits.get("test"))


def _split(images, labels, classes: int | None, what: str) -> Split:
    try:
        images = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"Images {what} must have one size.") from error
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or not images.size:
        raise ValueError(
            f"Images {what} must be (n, height, width) or (n, height, width, channels), and not "
            f"empty. Received: shape {images.shape}."
        )
    labels = checked_labels(labels, len(images), classes, f"Labels {what}")
    return Split(as_uint8(images, f"Images {what}"), labels)
