"""Array sources: in memory, in an .npz file, or shipped with the package."""

from pathlib import Path

import numpy as np

from keras_vitx.data.preprocessing import as_uint8
from keras_vitx.data.sources.splits import Dataset, Split, checked_labels, number_of_classes

FASHION_MNIST = Path(__file__).parents[1] / "fashion_mnist" / "sample.npz"
PARTS = {"train": "training", "val": "validation", "test": "test"}


def open_fashion_mnist() -> Dataset:
    """Open the shipped sample of Fashion-MNIST: 5,000 training images and 1,000 test images."""
    return open_npz(FASHION_MNIST, name="fashion_mnist")


def open_npz(path: Path, name: str | None = None) -> Dataset:
    """Open an .npz file with x_train and y_train, and optional x_val, y_val, x_test, y_test.

    It may also hold `class_names`.

    Raises:
        ValueError: if arrays are missing or inconsistent.
        OSError: if the file can't be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile and NumPy raise whatever a bad file provokes.
        raise OSError(f"{path} can't be read as an .npz file: {error!s:.200}") from error
    found = ", ".join(sorted(arrays)) or "nothing"
    pairs = {}
    for part in PARTS:
        present = [key in arrays for key in (f"x_{part}", f"y_{part}")]
        if any(present) != all(present) or (part == "train" and not any(present)):
            raise ValueError(
                "source: expected x_train and y_train, and optional pairs x_val, y_val and "
                f"x_test, y_test in {path}, found {found}."
            )
        if all(present):
            pairs[part] = arrays[f"x_{part}"], arrays[f"y_{part}"]
    names = arrays.get("class_names")
    names = None if names is None else tuple(map(str, names))
    return _open(pairs, name or str(path), names)


def open_arrays(pair: tuple) -> Dataset:
    """Open (images, labels), or ((x_train, y_train), (x_val, y_val)[, (x_test, y_test)]).

    The class names are the integers up to the largest label.

    Raises:
        ValueError: if the images or the labels are invalid.
    """
    if len(pair) in (2, 3) and all(isinstance(part, tuple) and len(part) == 2 for part in pair):
        pairs = dict(zip(PARTS, pair, strict=False))
    elif len(pair) == 2:
        pairs = {"train": pair}
    else:
        raise ValueError(
            "source: expected (images, labels) or ((x_train, y_train), (x_val, y_val)), with "
            f"(x_test, y_test) as an optional third pair, got {len(pair)} items."
        )
    return _open(pairs, "arrays", None)


def _open(pairs: dict[str, tuple], name: str, class_names: tuple[str, ...] | None) -> Dataset:
    known = len(class_names) if class_names else None
    parts = {key: _part(*pair, known, f"of the {PARTS[key]} part") for key, pair in pairs.items()}
    labels = [part.labels for part in parts.values()]
    if len({(part.dtype.kind, part.shape[1:]) for part in labels}) > 1:
        forms = ", ".join(f"{part.dtype} {part.shape}" for part in labels)
        raise ValueError(f"labels: expected one form in all parts, got {forms}.")
    if labels[0].dtype.kind == "i" and len(np.unique(labels[0])) < 2:
        raise ValueError(
            f"source: expected at least two classes, but every label is {labels[0][0]}."
        )
    classes = number_of_classes(labels)
    if class_names is None and classes is not None:
        class_names = tuple(map(str, range(classes)))
    return Dataset(name, class_names, parts["train"], parts.get("val"), parts.get("test"))


def _part(images, labels, classes: int | None, what: str) -> Split:
    try:
        images = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"images {what}: expected images of one size.") from error
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or not images.size:
        raise ValueError(
            f"images {what}: expected an array (n, height, width) or (n, height, width, channels) "
            f"that isn't empty, got shape {images.shape}."
        )
    labels = checked_labels(labels, len(images), classes, f"labels {what}")
    return Split(as_uint8(images, f"images {what}"), labels)
