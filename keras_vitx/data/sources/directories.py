"""Sources that are directories: image files in one sub-directory per class, and ImageNet-ReaL."""

import functools
import itertools
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from keras_vitx.data.images import FORMATS, check_image
from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.data.sources.dataset import Dataset, ImageFiles, Split, dataset_of
from keras_vitx.data.sources.names import in_order, split_in, split_of, text_of

LAYOUT = (
    "Expected one sub-directory per class with its images in it (cat/1.jpg, dog/2.png, ...), or "
    "the directories train/, and optionally val/ and test/, that hold such sub-directories."
)
# Includes formats that Pillow can't read, so that they are reported instead of ignored.
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp", ".tif"),
    *(".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".qoi", ".psd", ".jp2", ".j2k"),
    *(".jpf", ".jpx", ".avif", ".avifs", ".heic", ".heics", ".heif", ".heifs", ".hif", ".jxl"),
    *(".svg", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"),
)
HIDDEN = {"$recycle.bin", "recycler", "#recycle", "#snapshot", "lost+found", "lost.dir"}
HIDDEN |= {"system volume information", "__macosx", "__pycache__"}
"""Directories that systems leave, in lower case; others begin with "." or, of a NAS, with "@"."""
REAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
log = logging.getLogger(__name__)


def load_directory(directory: Path, strict: bool = False, splits: bool | None = None) -> Dataset:
    """Load a directory from the names of its files, without reading them; see `load_dataset`.

    Left out, with a warning, are: a class directory without files of images; a test directory
    without classes, whose images have no labels; any other directory of a split without images.
    """
    by_split, skipped, owners = _split_directories(directory, splits), [], {}
    files = {split: _classes(path, skipped, owners) for split, path in by_split.items()}
    names = in_order(files["train"] if "train" in files else itertools.chain(*files.values()))
    for split, path in by_split.items():
        unknown = sorted(files[split].keys() - set(names))
        is_unlabeled = split == "test" and len(unknown) == len(files[split]) < 2
        if split != "train" and (is_unlabeled or not files[split]):
            log.warning("%s has no images of a class, and is not used.", path)
            del files[split]
        elif unknown:
            raise ValueError(
                f"`source` must have the classes of {by_split['train']} in all splits. Received: "
                f"{path} with {', '.join(unknown)}."
            )
        elif loose := [p for p in path.iterdir() if _is_image(p.name) and p.is_file()]:
            log.warning("%d images in no class are not used, such as %s.", len(loose), loose[0])
    if len(names) < 2 and ("train" in files or not names):
        raise ValueError(
            f"`source` must have at least two classes. Received: {len(names)} class directories in "
            f"{by_split.get('train', directory)}. {LAYOUT}"
        )
    if empty := [name for name, found in files.get("train", {}).items() if not found]:
        raise ValueError(
            f"`source` must have a readable image of every class. Received: none of {empty[0]} in "
            f"{by_split['train']}. {LAYOUT}"
        )
    loaded = {}
    for split, classes in files.items():
        paths = [sorted(classes.get(name, ())) for name in names]
        labels = np.repeat(np.arange(len(names)), list(map(len, paths)))
        loaded[split] = ImageFiles(itertools.chain(*paths), directory), labels
    if skipped:
        suffixes = ", ".join(sorted({path.suffix.lower() for path in skipped}))
        message = f"{len(skipped)} images are no regular files or of formats that Pillow can't read"
        if strict:
            raise OSError(f"{message} ({suffixes}), such as {skipped[0]}.")
        log.warning("%s (%s), and are skipped, such as %s.", message, suffixes, skipped[0])
    return dataset_of(str(directory), loaded, names, skipped)


def _classes(
    directory: Path, skipped: list[Path], owners: dict[str, Path]
) -> dict[str, list[Path]]:
    """Return the image files of each class, each once; a ValueError if a link gives it another.

    `owners` has the directory of the class of each real path, in all splits.
    """
    classes: dict[str, list[Path]] = {}
    for child in sub_directories(directory):
        known, found = len(skipped), {}
        for path, real in _readable(child, skipped):
            if (owner := owners.setdefault(real, child)) is not child:
                raise ValueError(
                    "`source` must have each image in one class and split, also behind links. "
                    f"Received: {real} in {owner} and {child}."
                )
            found[real] = min(path, found.get(real, path))
        if found or len(skipped) > known:
            classes.setdefault(text_of(child.name), []).extend(found.values())
        else:
            log.warning("%s has no images, and is no class.", child)
    return classes


def is_hidden(name: str) -> bool:
    """Return whether a directory is not the user's, but of a system, an editor or an archive."""
    return name.startswith((".", "@")) or name.lower() in HIDDEN


def sub_directories(directory: Path) -> list[Path]:
    """Return the directories in a directory, sorted by name, without hidden ones."""
    return sorted(p for p in directory.iterdir() if p.is_dir() and not is_hidden(p.name))


def _split_directories(directory: Path, splits: bool | None) -> dict[str, Path]:
    """Return the directory of each split, or `directory` if its sub-directories are classes."""
    by_split: dict[str, list[Path]] = {}
    others = []
    children = sub_directories(directory)
    by_words = not any(split_of(path.name) for path in children)
    for path in children:
        split = (split_in if by_words else split_of)(path.name)
        (by_split.setdefault(split, []) if split else others).append(path)
    if splits is False or len(by_split) < 1 + by_words:
        return {"train": directory}
    if splits is None:
        split_directories = [path for paths in by_split.values() for path in paths]
        others = [path for path in others if next(_files(path), None) is not None]
        # The directory of a class holds images directly.
        nested = any(map(sub_directories, split_directories))
        if by_words or nested == bool(others):
            names = ", ".join(f"{path.name}/" for path in split_directories + others[:3])
            reason = "" if "train" in by_split else " There is no train/."
            raise ValueError(
                f"`splits` must be set where directories could be splits or classes. Received: "
                f"None, for {names} in {directory}.{reason} Pass `splits=True`, or splits=False "
                "for classes, to `keras_vitx.data.load_dataset`; or pass the directory that holds "
                f"the classes. {LAYOUT}"
            )
        if others:
            return {"train": directory}  # Such as the classes "test" and "cat".
    for paths in by_split.values():
        if len(paths) > 1:
            names = " or ".join(f"{path.name}/" for path in paths)
            raise ValueError(f"`source` must have either {names} in {directory}. Received: both.")
    return {split: paths[0] for split, paths in by_split.items()}


@functools.cache
def readable_suffixes() -> frozenset[str]:
    """Return the `IMAGE_SUFFIXES` of `FORMATS` that Pillow reads here."""
    formats = Image.registered_extensions()
    read = Image.OPEN.keys() & set(FORMATS)
    return frozenset(suffix for suffix in IMAGE_SUFFIXES if formats.get(suffix) in read)


def image_files(directory: Path, skipped: list[Path] | None = None) -> list[Path]:
    """Return the image files below a directory, sorted; add those that can't be read to `skipped`.

    Links are followed, each directory once. Hidden files and directories are left out at any depth.
    """
    return sorted(path for path, _ in _readable(directory, [] if skipped is None else skipped))


def _readable(directory: Path, skipped: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the `image_files` with their real paths, in no order."""
    for path, real, is_file in _files(directory):
        if is_file and path.suffix.lower() in readable_suffixes():
            yield path, real
        else:
            skipped.append(path)


def _files(directory: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield all that is an image by its suffix, its real path, and whether it is a file."""
    visited, pending, top = set(), [os.fspath(directory)], os.path.realpath(directory)
    while pending:
        real = os.path.realpath(path := pending.pop())
        is_above = real != top and top.startswith(os.path.join(real, ""))  # A cycle of links.
        if real in visited or is_above:
            continue
        visited.add(real)
        with os.scandir(path) as entries:
            for entry in entries:
                # Entries know what they are, but raise an error for a link to itself.
                is_link = entry.is_symlink()
                if os.path.isdir(entry) if is_link else entry.is_dir():
                    pending += [] if is_hidden(entry.name) else [entry.path]
                elif _is_image(entry.name):
                    is_file = os.path.isfile(entry) if is_link else entry.is_file()
                    target = os.path.realpath(entry) if is_link else os.path.join(real, entry.name)
                    yield Path(entry.path), target, is_file


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def unreadable(paths: Sequence[Path]) -> dict[Path, OSError]:
    """Read every image file once, and return the error of each that can't be decoded."""

    def error_of(path: Path) -> OSError | None:
        try:
            return check_image(path)
        except OSError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = pool.map(error_of, paths)
        return {path: error for path, error in zip(paths, errors, strict=True) if error}


def load_real(directory: str | os.PathLike, labels: str | os.PathLike) -> Dataset:
    """Load ImageNet's validation images with the labels of ImageNet-ReaL (Beyer et al., 2020).

    Images without a label are left out, as in the paper. `keras_vitx.evaluate` counts a prediction
    as correct if it is any of the labels.

    Args:
        directory: The images, `ILSVRC2012_val_00000001.JPEG`, ..., with or without a sub-directory
            per class.
        labels: The published `real.json`: a list of the labels of each image, in the order of their
            numbers.

    Returns:
        A dataset whose test split has float32 labels (n, 1000): rows with the same probability for
        each label.

    Raises:
        ValueError: if the file is not such a list, or has no entry for an image.
        OSError: if the file can't be read.
    """
    directory, path = Path(directory).expanduser(), Path(labels).expanduser()
    names = tuple(synset for synset, _ in imagenet_classes())
    expected = f"`labels` must be a list of lists of integers in 0..999. Received: {path}"
    known = set(range(len(names)))
    try:
        entries = json.loads(path.read_text())
        is_valid = all(known.issuperset(entry) for entry in entries)
    except (ValueError, TypeError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"{expected}.")
    files, rows = [], []
    for file in image_files(directory):
        if not (number := REAL_NUMBER.match(file.name)):
            continue
        if not 0 < int(number[1]) <= len(entries):
            raise ValueError(f"{expected} with {len(entries)}, none for {file.name}.")
        if entry := entries[int(number[1]) - 1]:
            is_label = np.isin(np.arange(len(names)), entry)
            files.append(file)
            rows.append(np.float32(is_label / is_label.sum()))
    if not files:
        raise ValueError(
            "`directory` must have images with labels, named ILSVRC2012_val_00000001.JPEG, ... "
            f"Received: {directory} without."
        )
    split = Split(ImageFiles(files), np.stack(rows))
    return Dataset(str(directory), names, train=split, test=split, multiple_labels=True)
