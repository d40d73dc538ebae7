"""Sources that are folders of image files, one sub-folder a class."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from keras_vitx.data.parts import Part, Source, stratified_split
from keras_vitx.data.preprocessing import check_image, decode_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
VALIDATION_FOLDERS = ("val", "validation", "test")
LAYOUT = (
    "Expected one sub-folder a class with its images in it (cat/1.jpg, dog/2.png, ...), or the "
    "folders train/ and val/ (or validation/ or test/) that hold such sub-folders."
)
log = logging.getLogger(__name__)


class ImageFiles(Sequence):
    """Images that are decoded, to RGB, when they are asked for."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3); raises OSError when it can't be decoded."""
        return decode_image(self.paths[index])


def open_folder(folder: Path, validation_split: float, strict: bool, seed: int) -> Source:
    """Open a folder; every image is read once to find those that can't be decoded.

    Raises:
        ValueError: when the folder isn't laid out as expected.
        OSError: with `strict`, at the first image that can't be decoded.
    """
    parts = _split_folders(folder)
    names = sorted(path.name for path in _class_folders(parts[0]))
    if len(names) < 2:
        raise ValueError(f"source: {len(names)} class folders in {parts[0]}. {LAYOUT}")
    for part in parts[1:]:
        unknown = sorted({path.name for path in _class_folders(part)} - set(names))
        if unknown:
            raise ValueError(
                f"source: {part} holds classes that {parts[0]} lacks: {', '.join(unknown)}."
            )

    skipped: list[Path] = []
    opened = [_open_part(part, names, strict, skipped) for part in parts]
    if skipped:
        first = ", ".join(map(str, skipped[:3])) + (", ..." if len(skipped) > 3 else "")
        log.warning("%d images that can't be decoded are skipped: %s", len(skipped), first)
    for label, name in enumerate(names):
        if label not in opened[0][1]:
            raise ValueError(f"source: no readable image in {parts[0] / name}. {LAYOUT}")

    (paths, labels), *rest = opened
    if rest:
        if not rest[0][0]:
            raise ValueError(f"source: no readable image in {parts[1]}. {LAYOUT}")
    else:
        train, validation = stratified_split(labels, validation_split, seed)
        rest = [([paths[i] for i in validation], labels[validation])]
        paths, labels = [paths[i] for i in train], labels[train]
    return Source(
        str(folder),
        tuple(names),
        Part(ImageFiles(paths), labels),
        Part(ImageFiles(rest[0][0]), rest[0][1]),
        tuple(skipped),
    )


def _class_folders(folder: Path) -> list[Path]:
    return [
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))
    ]


def _split_folders(folder: Path) -> list[Path]:
    """Return the folder, or its training and validation folders where it is cut already."""
    names = {path.name for path in _class_folders(folder)}
    if "train" not in names or not names <= {"train", *VALIDATION_FOLDERS}:
        return [folder]
    validation = [name for name in VALIDATION_FOLDERS if name in names]
    return [folder / name for name in ("train", *validation[:1])]


def _open_part(
    folder: Path, names: list[str], strict: bool, skipped: list[Path]
) -> tuple[list[Path], np.ndarray]:
    """Return the paths and labels of the images that can be decoded; add the others to skipped."""
    found = [
        (path, label) for label, name in enumerate(names) for path in _image_files(folder / name)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checks = pool.map(_error_of, [path for path, _ in found])
        good = []
        for (path, label), error in zip(found, checks, strict=True):
            if error is None:
                good.append((path, label))
            elif strict:
                pool.shutdown(cancel_futures=True)
                raise error
            else:
                skipped.append(path)
    return [path for path, _ in good], np.array([label for _, label in good], "int32")


def _image_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _error_of(path: Path) -> OSError | None:
    try:
        check_image(path)
    except OSError as error:
        return error
    return None
