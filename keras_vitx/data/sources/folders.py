"""Folder sources: image files in one sub-folder per class."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from keras_vitx.data.preprocessing import check_image, decode_image
from keras_vitx.data.sources.parts import Part, Source, set_aside

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# The part of the source that a folder holds, by folder name.
PARTS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
LAYOUT = (
    "Expected one sub-folder per class with its images in it (cat/1.jpg, dog/2.png, ...), or the "
    "folders train/, and optionally val/ (or validation/) and test/, that hold such sub-folders."
)
log = logging.getLogger(__name__)


class ImageFiles(Sequence):
    """Image files, decoded lazily to RGB."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: np.ndarray) -> "ImageFiles":
        """Return the images at `indices`."""
        return ImageFiles([self.paths[index] for index in indices])

    def id(self, index: int) -> Path:
        """Return the path of an image."""
        return self.paths[index]

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3). Raises OSError if the file can't be decoded."""
        return decode_image(self.paths[index])


def open_folder(folder: Path, validation_split: float, strict: bool, seed: int) -> Source:
    """Open a folder. Every image is read once to find those that can't be decoded.

    Raises:
        ValueError: if the folder doesn't have the expected layout.
        OSError: with `strict`, at the first image that can't be decoded.
    """
    folders = _part_folders(folder)
    train = folders["train"]
    names = sorted(path.name for path in _class_folders(train))
    if len(names) < 2:
        raise ValueError(f"source: {len(names)} class folders in {train}. {LAYOUT}")
    for part in folders.values():
        unknown = sorted({path.name for path in _class_folders(part)} - set(names))
        if unknown:
            raise ValueError(
                f"source: {part} holds classes that {train} lacks: {', '.join(unknown)}."
            )

    skipped: list[Path] = []
    parts = {key: _open_part(part, names, strict, skipped) for key, part in folders.items()}
    if skipped:
        first = ", ".join(map(str, skipped[:3])) + (", ..." if len(skipped) > 3 else "")
        log.warning("Skipped %d images that can't be decoded: %s", len(skipped), first)
    for label, name in enumerate(names):
        if label not in parts["train"].labels:
            raise ValueError(f"source: no readable image in {train / name}. {LAYOUT}")
    for key, part in parts.items():
        if not part.size:
            raise ValueError(f"source: no readable image in {folders[key]}. {LAYOUT}")

    if "validation" not in parts:
        parts["train"], parts["validation"] = set_aside(parts["train"], validation_split, seed)
    return Source(str(folder), tuple(names), **parts, skipped=tuple(skipped))


def _class_folders(folder: Path) -> list[Path]:
    return [
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))
    ]


def _part_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each part; without such folders, the folder itself is `train`."""
    names = {path.name for path in _class_folders(folder)}
    if "train" not in names or not names <= PARTS.keys():
        return {"train": folder}
    folders = {}
    for name in sorted(names):
        if PARTS[name] in folders:
            raise ValueError(f"source: expected either val/ or validation/ in {folder}, got both.")
        folders[PARTS[name]] = folder / name
    return folders


def _open_part(folder: Path, names: list[str], strict: bool, skipped: list[Path]) -> Part:
    """Return the images that can be decoded; add the others to `skipped`."""
    found = [
        (path, label) for label, name in enumerate(names) for path in image_files(folder / name)
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
    labels = np.array([label for _, label in good], "int32")
    return Part(ImageFiles([path for path, _ in good]), labels)


def image_files(folder: Path) -> list[Path]:
    """Return the image files of a folder and its sub-folders, by suffix, sorted by path."""
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
