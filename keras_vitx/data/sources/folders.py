"""Folder sources: image files in one sub-folder per class."""

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, features

from keras_vitx.data.preprocessing import check_image
from keras_vitx.data.sources.encoded import ImageFiles
from keras_vitx.data.sources.splits import Dataset, Split, split_of

LAYOUT = (
    "Expected one sub-folder per class with its images in it (cat/1.jpg, dog/2.png, ...), or the "
    "folders train/, and optionally val/ and test/, that hold such sub-folders."
)
# Files that a photographer would call images; Pillow reads most of them.
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp", ".tif"),
    *(".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".qoi", ".psd", ".jp2", ".j2k"),
    *(".jpf", ".jpx", ".avif", ".avifs", ".heic", ".heics", ".heif", ".heifs", ".hif", ".jxl"),
    *(".svg", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"),
)
log = logging.getLogger(__name__)


def load_folder(folder: Path, strict: bool = False, splits: bool | None = None) -> Dataset:
    """Load a folder by the names of its files; none is read.

    Args:
        folder: The folder.
        strict: Whether an image file of a kind that Pillow can't read is an error.
        splits: Whether its sub-folders are splits, or classes; None decides by their names.

    Raises:
        ValueError: if the folder doesn't have the expected layout, or its sub-folders could be
            both splits and classes.
        OSError: with `strict`, if a file is of a kind that Pillow can't read.
    """
    folders = _folders_of_splits(folder, splits)
    train = folders["train"]
    names = sorted(path.name for path in sub_folders(train))
    if len(names) < 2:
        raise ValueError(f"source: {len(names)} class folders in {train}. {LAYOUT}")
    for split in folders.values():
        unknown = sorted({path.name for path in sub_folders(split)} - set(names))
        if unknown:
            raise ValueError(
                f"source: {split} holds classes that {train} lacks: {', '.join(unknown)}."
            )

    skipped: list[Path] = []
    loaded = {}
    for split, path in folders.items():
        found = [
            (file, label)
            for label, name in enumerate(names)
            for file in image_files(path / name, skipped)
        ]
        labels = np.array([label for _, label in found], "int32")
        loaded[split] = Split(ImageFiles([file for file, _ in found], folder), labels)
    if skipped:
        kinds = ", ".join(sorted({path.suffix.lower() for path in skipped}))
        message = f"{len(skipped)} images are of a kind that Pillow can't read here ({kinds})"
        if strict:
            raise OSError(f"{message}, such as {skipped[0]}.")
        log.warning("%s, and are skipped, such as %s.", message, skipped[0])
    for label, name in enumerate(names):
        if label not in loaded["train"].labels:
            raise ValueError(f"source: no readable image in {train / name}. {LAYOUT}")
    for split, images in loaded.items():
        if not images.size:
            raise ValueError(f"source: no readable image in {folders[split]}. {LAYOUT}")
    return Dataset(str(folder), tuple(names), **loaded, skipped=tuple(skipped))


def sub_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones."""
    return sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))
    )


def _folders_of_splits(folder: Path, splits: bool | None) -> dict[str, Path]:
    """Return the folder of each split; if the sub-folders are classes, `folder` itself."""
    found: dict[str, list[Path]] = {}
    for path in sub_folders(folder):
        found.setdefault(split_of(path.name) or "", []).append(path)
    others = found.pop("", [])
    if not found or splits is False:
        return {"train": folder}
    # Of classes, a folder holds images itself.
    nested = any(sub_folders(path) for paths in found.values() for path in paths)
    if splits is None:
        others = [path for path in others if next(_files(path), None) is not None]
        if others and not nested:
            return {"train": folder}  # such as the classes "test" and "cat"
        if others or not nested or "train" not in found:
            named = ", ".join(f"{p.name}/" for paths in found.values() for p in paths)
            beside = f" beside {', '.join(f'{p.name}/' for p in others[:3])}" if others else ""
            reason = "" if "train" in found else " There is no train/."
            raise ValueError(
                f"source: {named}{beside} in {folder} could be splits or classes.{reason} Give "
                "`kv.data.load_dataset(folder, splits=True)`, or splits=False for classes, or the "
                f"path of the folder that holds the classes. {LAYOUT}"
            )
    if "train" not in found:
        raise ValueError(f"source: there is no train/ in {folder}. {LAYOUT}")
    for paths in found.values():
        if len(paths) > 1:
            both = " or ".join(f"{path.name}/" for path in paths)
            raise ValueError(f"source: expected either {both} in {folder}, got both.")
    return {split: paths[0] for split, paths in found.items()}


@functools.cache
def readable_suffixes() -> frozenset[str]:
    """Return the `IMAGE_SUFFIXES` that Pillow reads here."""
    kinds = Image.registered_extensions()
    found = {suffix for suffix in IMAGE_SUFFIXES if kinds.get(suffix) in Image.OPEN}
    missing = [kind for kind, part in (("JPEG2000", "jpg_2000"), ("AVIF", "avif"))
               if not features.check(part)]  # fmt: skip
    return frozenset(suffix for suffix in found if kinds[suffix] not in missing)


def image_files(folder: Path, skipped: list[Path] | None = None) -> list[Path]:
    """Return the image files of a folder and its sub-folders, by suffix, sorted by path.

    Args:
        folder: The folder.
        skipped: Image files of a kind that Pillow can't read are added to it.
    """
    readable = []
    for path in _files(folder):
        if path.suffix.lower() in readable_suffixes():
            readable.append(path)
        elif skipped is not None:
            skipped.append(path)
    return sorted(readable)


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files of a folder and its sub-folders that are images by their suffix."""
    for root, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                yield Path(root, name)


def unreadable(paths: Sequence[Path]) -> dict[Path, OSError]:
    """Read every image file once, and return the error of each that can't be decoded."""

    def error_of(path: Path) -> OSError | None:
        try:
            check_image(path)
        except OSError as error:
            return error
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = pool.map(error_of, paths)
        return {path: error for path, error in zip(paths, errors, strict=True) if error}
