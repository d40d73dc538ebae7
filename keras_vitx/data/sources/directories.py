"""Sources that are directories: image files in one sub-directory per class."""

import functools
import itertools
import logging
import os
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from keras_vitx.data.decoding import FORMATS
from keras_vitx.data.sources.dataset import Dataset, ImageFiles, dataset_of
from keras_vitx.data.sources.names import in_order, name_of, split_of

UNREAD = (
    *(".ico", ".psd", ".svg", ".eps", ".exr", ".hdr", ".dcm", ".mpo", ".pcx", ".icns", ".heic"),
    *(".heics", ".heif", ".heifs", ".hif", ".avif", ".avifs", ".jxl", ".cr2", ".cr3", ".nef"),
    *(".arw", ".dng", ".orf", ".rw2", ".raf", ".pef", ".srw", ".x3f", ".crw", ".nrw", ".sr2"),
    *(".rwl", ".3fr", ".iiq", ".erf", ".webp", ".jp2", ".j2k", ".jpf", ".jpx"),
)
"""Suffixes of images that Pillow can't read, some unless it has a plugin: reported, not ignored."""
HIDDEN = (".", "@", "$", "__MACOSX")
"""How directories begin that are an editor's, a NAS's, Windows's or an archive's own."""
log = logging.getLogger(__name__)


def load_directory(directory: Path, strict: bool = False) -> Dataset:
    """Load a directory from the names of its files, without reading them; see `load_dataset`."""
    parts = {split_of(path.name): path for path in sub_directories(directory)}
    # The directory of a class named "test" holds images, that of a split directories of classes.
    parts = {split: path for split, path in parts.items() if split and sub_directories(path)}
    skipped: list[Path] = []
    files: dict[str, dict[str, list[Path]]] = {}
    for split, path in (parts or {"train": directory}).items():
        files[split] = classes = {}
        for child in sub_directories(path):
            known = len(skipped)
            if (images := image_files(child, skipped)) or len(skipped) > known:
                classes.setdefault(name_of(child.name), []).extend(images)
            else:
                log.warning("%s has no images, and is no class.", child)
    if parts and (others := [p for p in sub_directories(directory) if p not in parts.values()]):
        log.warning("Only %s are used, not %s.", ", ".join(parts), ", ".join(map(str, others)))
    names = in_order(files["train"] if "train" in files else itertools.chain(*files.values()))
    for split, classes in files.items():
        if unknown := sorted(classes.keys() - set(names)):
            raise ValueError(
                "`source` must have the classes of train/ in all splits. Received: "
                f"{', '.join(unknown)} in {parts[split]}."
            )
    if not any(itertools.chain(*(classes.values() for classes in files.values()))):
        raise ValueError(
            "`source` must be a directory with one sub-directory per class (cat/1.jpg, dog/2.png, "
            f"...), or train/, val/ and test/ with such. Received: {directory}, without images."
        )
    if skipped:
        counts = Counter(path.suffix.lower() for path in skipped)
        message = (
            f"{len(skipped)} images are of formats that Pillow can't read here "
            f"({', '.join(f'{count} {suffix}' for suffix, count in sorted(counts.items()))})"
        )
        if strict:
            raise OSError(f"{message}, such as {skipped[0]}.")
        log.warning("%s, and are skipped, such as %s.", message, skipped[0])
    splits = {}
    for split, classes in files.items():
        paths = [classes.get(name, []) for name in names]
        labels = np.repeat(np.arange(len(names)), list(map(len, paths)))
        splits[split] = ImageFiles(itertools.chain(*paths), directory), labels
    return dataset_of(str(directory), splits, names, skipped)


def sub_directories(directory: Path) -> list[Path]:
    """Return the directories in a directory, sorted by name, without hidden ones."""
    found = (path for path in directory.iterdir() if not path.name.startswith(HIDDEN))
    return sorted(path for path in found if path.is_dir())


def image_files(directory: Path, skipped: list[Path]) -> list[Path]:
    """Return the image files below a directory, sorted; add those that can't be read to `skipped`.

    Links are followed, each directory once. Hidden files and directories are left out at any depth.
    """
    found, seen = [], set()
    for folder, children, files in os.walk(directory, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            children.clear()
            continue
        seen.add(real)
        children[:] = [name for name in children if not name.startswith(HIDDEN)]
        for name in files:
            suffix = "" if name.startswith(".") else os.path.splitext(name)[1].lower()
            if suffix in readable_suffixes():
                found.append(Path(folder, name))
            elif suffix in UNREAD:
                skipped.append(Path(folder, name))
    return sorted(found)


@functools.cache
def readable_suffixes() -> frozenset[str]:
    """Return the suffixes of `FORMATS` that Pillow reads here."""
    formats = Image.registered_extensions()
    read = Image.OPEN.keys() & set(FORMATS)
    return frozenset(suffix for suffix, name in formats.items() if name in read)
