"""Sources that are arrays: in memory, in an .npz file, or shipped with the package."""

import zipfile
from pathlib import Path

import numpy as np

from keras_vitx.data.parts import Part, Source, checked_labels, stratified_split
from keras_vitx.data.preprocessing import as_uint8

FASHION_MNIST = Path(__file__).parent / "fashion_mnist" / "sample.npz"


def open_fashion_mnist() -> Source:
    """Open the sample of Fashion-MNIST: 5,000 images to train on, 1,000 to validate on."""
    return open_npz(FASHION_MNIST, validation_split=0.1, seed=0, name="fashion_mnist")


def open_npz(path: Path, validation_split: float, seed: int, name: str | None = None) -> Source:
    """Open a file of NumPy: x_train, y_train, x_test and y_test, and maybe class_names.

    Without x_test and y_test, a part of the training images is set aside.

    Raises:
        ValueError: when arrays are missing or don't fit.
        OSError: when the file can't be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise OSError(f"{path} can't be read as an .npz file: {error}") from error
    found = ", ".join(sorted(arrays)) or "nothing"
    if not {"x_train", "y_train"} <= arrays.keys() or ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(
            f"source: expected x_train, y_train, x_test and y_test in {path}, found {found}."
        )
    pair = (arrays["x_train"], arrays["y_train"])
    if "x_test" in arrays:
        pair = (pair, (arrays["x_test"], arrays["y_test"]))
    names = arrays.get("class_names")
    return open_arrays(
        pair, validation_split, seed, name or str(path), names if names is None else names.tolist()
    )


def open_arrays(
    pair: tuple,
    validation_split: float,
    seed: int,
    name: str = "arrays",
    class_names: list[str] | None = None,
) -> Source:
    """Open (images, labels), or ((x_train, y_train), (x_val, y_val)).

    Where no class names are given, they are the numbers up to the largest label.

    Raises:
        ValueError: when the images or the labels are not what is expected.
    """
    if len(pair) != 2:
        raise ValueError(
            "source: expected (images, labels) or ((x_train, y_train), (x_val, y_val)), got "
            f"{len(pair)} items."
        )
    classes = len(class_names) if class_names else None
    if all(isinstance(part, tuple) and len(part) == 2 for part in pair):
        train = _part(*pair[0], classes, "of the training part")
        validation = _part(*pair[1], classes, "of the validation part")
    else:
        images, labels = _part(*pair, classes, "of the source")
        train, validation = (
            Part(images[indices], labels[indices])
            for indices in stratified_split(labels, validation_split, seed)
        )
    if len(np.unique(train.labels)) < 2:
        raise ValueError(
            f"source: expected at least two classes, but every label is {train.labels[0]}."
        )
    if classes is None:
        classes = 1 + max(int(part.labels.max()) for part in (train, validation))
        class_names = list(map(str, range(classes)))
    return Source(name, tuple(class_names), train, validation)


def _part(images, labels, classes: int | None, what: str) -> Part:
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
    return Part(as_uint8(images, f"images {what}"), labels)
