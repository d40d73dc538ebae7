"""Folder sources: image files in one sub-folder per class."""

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from keras_vitx.data.preprocessing import check_image
from keras_vitx.data.sources.dataset import Dataset, ImageFiles, dataset_of, split_of

LAYOUT = (
    "Expected one sub-folder per class with its images in it (cat/1.jpg, dog/2.png, ...), or the "
    "folders train/, and optionally val/ and test/, that hold such sub-folders."
)
# Includes kinds that Pillow can't read, so that they are reported and not just ignored.
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp", ".tif"),
    *(".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".qoi", ".psd", ".jp2", ".j2k"),
    *(".jpf", ".jpx", ".avif", ".avifs", ".heic", ".heics", ".heif", ".heifs", ".hif", ".jxl"),
    *(".svg", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"),
)
log = logging.getLogger(__name__)


def load_folder(folder: Path, strict: bool = False, splits: bool | None = None) -> Dataset:
    """Load a folder by the names of its files, none of which is read; see `load_dataset`."""
    folders = _folders_of_splits(folder, splits)
    train = folders["train"]
    names = [path.name for path in sub_folders(train)]
    if len(names) < 2:
        raise ValueError(f"`source` has {len(names)} class folders in {train}. {LAYOUT}")
    skipped: list[Path] = []
    loaded = {}
    for split, path in folders.items():
        if unknown := sorted({each.name for each in sub_folders(path)} - set(names)):
            raise ValueError(
                f"`source`: {path} has classes that {train} lacks: {', '.join(unknown)}."
            )
        by_class = [image_files(path / name, skipped) for name in names]
        if split == "train" and [] in by_class:
            empty = train / names[by_class.index([])]
            raise ValueError(f"`source` has no readable image in {empty}. {LAYOUT}")
        files = [(file, label) for label, found in enumerate(by_class) for file in found]
        loaded[split] = (
            ImageFiles([file for file, _ in files], folder),
            [label for _, label in files],
        )
    if skipped:
        kinds = ", ".join(sorted({path.suffix.lower() for path in skipped}))
        message = f"{len(skipped)} images are of a kind that Pillow can't read here ({kinds})"
        if strict:
            raise OSError(f"{message}, such as {skipped[0]}.")
        log.warning("%s, and are skipped, such as %s.", message, skipped[0])
    return dataset_of(str(folder), loaded, names, skipped)


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
    if splits is None:
        others = [path for path in others if next(_files(path), None) is not None]
        # The folder of a class holds images directly.
        nested = any(sub_folders(path) for paths in found.values() for path in paths)
        if others and not nested:
            return {"train": folder}  # such as the classes "test" and "cat"
        if others or not nested or "train" not in found:
            splits_found = [path for paths in found.values() for path in paths]
            named = ", ".join(f"{path.name}/" for path in splits_found + others[:3])
            reason = "" if "train" in found else " There is no train/."
            raise ValueError(
                f"`source`: {named} in {folder} could be splits or classes.{reason} Give "
                "`kv.data.load_dataset(folder, splits=True)`, or splits=False for classes, or the "
                f"path of the folder that holds the classes. {LAYOUT}"
            )
    if "train" not in found:
        raise ValueError(f"`source`: there is no train/ in {folder}. {LAYOUT}")
    for paths in found.values():
        if len(paths) > 1:
            both = " or ".join(f"{path.name}/" for path in paths)
            raise ValueError(f"`source` must have either {both} in {folder}. Received: both.")
    return {split: paths[0] for split, paths in found.items()}


@functools.cache
def readable_suffixes() -> frozenset[str]:
    """Return the `IMAGE_SUFFIXES` that Pillow reads here."""
    kinds = Image.registered_extensions()
    return frozenset(suffix for suffix in IMAGE_SUFFIXES if kinds.get(suffix) in Image.OPEN)


def image_files(folder: Path, skipped: list[Path] | None = None) -> list[Path]:
    """Return the image files below a folder, sorted; unreadable kinds are added to `skipped`."""
    readable, others = [], [] if skipped is None else skipped
    for path in _files(folder):
        (readable if path.suffix.lower() in readable_suffixes() else others).append(path)
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
