"""Sources that are directories: image files in one sub-directory per class."""

import functools
import itertools
import logging
import os
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from keras_vitx.checks import check
from keras_vitx.data.decoding import FORMATS
from keras_vitx.data.sources.dataset import Dataset, ImageFiles, dataset_of
from keras_vitx.data.sources.names import in_order, name_of, split_of
from keras_vitx.text import shorten

NO_IMAGES = (".txt", ".csv", ".json", ".xml", ".yaml", ".yml", ".md", ".html", ".db", ".ini")
"""Suffixes of files that are no images; others that Pillow can't read are reported, not ignored."""
HIDDEN = (".", "@", "$", "__MACOSX")
"""How directories begin that are an editor's, a NAS's, Windows's or an archive's own."""
log = logging.getLogger(__name__)


def load_directory(directory: Path, strict: bool = False) -> Dataset:
    """Load a directory from the names of its files, without reading them; see `load_dataset`."""
    parts = {split_of(path.name): path for path in sub_directories(directory)}
    # The directory of a class named "test" holds images, that of a split directories of classes.
    parts = {split: path for split, path in parts.items() if split and sub_directories(path)}
    skipped: list[Path] = []
    nested: list[str] = []
    files: dict[str, dict[str, list[Path]]] = {}
    for split, path in (parts or {"train": directory}).items():
        files[split] = classes = {}
        for child in sub_directories(path):
            if images := image_files(child, skipped):
                classes.setdefault(name_of(child.name) or child.name, []).extend(images)
            else:
                log.warning("%s has no images that Pillow can read, and is no class.", child)
            if images and all(image.parent != child for image in images):
                nested.append(f"{child} ({shorten(p.name for p in sub_directories(child))})")
    if parts and (others := [p for p in sub_directories(directory) if p not in parts.values()]):
        log.warning("Only %s are used, not %s.", ", ".join(parts), ", ".join(map(str, others)))
    names = in_order(files["train"] if "train" in files else itertools.chain(*files.values()))
    for split, classes in files.items():
        unknown = [str(parts[split] / name) for name in classes if name not in names]
        check(not unknown, "`source` must have the classes of train/ in all splits.", unknown)
    rule = "`source` must have images in one sub-directory per class, also in train/, val/, test/."
    check(names, rule, str(directory))
    if nested:
        rule = "`source` must be the directory of the classes, not the one above it."
        check(len(names) > 1, rule, nested[0])
        text = "Taken for classes, though their images are in directories of their own: %s."
        log.warning(text, shorten(nested, 5))
    if skipped:
        counts = Counter(path.suffix.lower() or "without a suffix" for path in skipped)
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
        message = f"{len(skipped)} images are of formats that Pillow can't read here ({kinds})"
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
    paths = (path for path in directory.iterdir() if not path.name.startswith(HIDDEN))
    return sorted(path for path in paths if path.is_dir())


def image_files(directory: Path, skipped: list[Path]) -> list[Path]:
    """Return the image files below a directory, sorted; add those that can't be read to `skipped`.

    Links are followed, each directory once. Hidden files and directories are left out at any depth.
    """
    above = *directory.absolute().parents, *directory.resolve().parents
    images, seen = [], set(map(os.path.realpath, above))
    for folder, children, files in os.walk(directory, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            children.clear()
            continue
        seen.add(real)
        children[:] = [name for name in children if not name.startswith(HIDDEN)]
        for name in files:
            suffix = os.path.splitext(name)[1].lower()
            if not name.startswith(".") and suffix not in NO_IMAGES:
                where = images if suffix in readable_suffixes() else skipped
                where.append(Path(folder, name))
    return sorted(images)


@functools.cache
def readable_suffixes() -> frozenset[str]:
    """Return the suffixes of `FORMATS` that Pillow reads here."""
    formats = Image.registered_extensions()
    read = Image.OPEN.keys() & set(FORMATS)
    return frozenset(suffix for suffix, name in formats.items() if name in read)
