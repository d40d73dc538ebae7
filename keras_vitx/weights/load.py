"""Resolve the argument `weights=` to a file, and load it into a model."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vitx.checks import check
from keras_vitx.weights.catalog import CHECKPOINTS, DATASETS, Checkpoint, find
from keras_vitx.weights.convert import abbreviate, convert
from keras_vitx.weights.description import (
    CONFIG,
    LIBRARY,
    SAFETENSORS,
    from_config,
    open_directory,
    writer_of,
)
from keras_vitx.weights.hub import SCHEME, Address, check_hash, download, parse, shipped_path
from keras_vitx.weights.names import Sizes
from keras_vitx.weights.reading import READERS, open_weights, suffix_of
from keras_vitx.weights.transformers import description_of

logger = logging.getLogger("keras_vitx")


class LocalFile(NamedTuple):
    """A weights file on this machine."""

    weights: str  # The user's argument, for errors.
    path: Path
    checkpoint: Checkpoint | None = None  # Its catalog entry.
    writer: str | None = None  # What wrote the directory that `weights` names, as `writer_of`.


def entry_of(
    weights: str | os.PathLike | None,
    constructor: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> Checkpoint | None:
    """Return the catalog entry of `weights`, or None; like `resolve`, but without a download."""
    if weights is None:
        return None
    is_name_or_path = isinstance(weights, str | os.PathLike)
    check(is_name_or_path, "`weights` must be a name, a path or None.", weights)
    text = os.fspath(weights)
    if text.startswith(SCHEME):
        address = parse(text)
        key = SCHEME + address.repository, address.file
        return next((c for c in CHECKPOINTS if (c.source, c.file) == key), None)
    # A directory named "imagenet" must not shadow the name.
    is_name = text in DATASETS or any(text == c.name for c in CHECKPOINTS)
    is_path = suffix_of(text) is not None or "/" in text or Path(text).exists()
    if isinstance(weights, os.PathLike) or (is_path and not is_name):
        return None
    return find(text, constructor, image_size, distillation_token)


def resolve(
    weights: str | os.PathLike | None,
    constructor: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> LocalFile | None:
    """Find the file of `weights` (see `load_weights` and `find`), downloading it if necessary.

    Called before the model is built, so that a wrong name fails fast. Raises a ValueError for an
    unknown name or format, and an OSError for a file that doesn't exist or can't be downloaded.
    """
    entry = entry_of(weights, constructor, image_size, distillation_token)
    if weights is None:
        return None
    text = os.fspath(weights)
    if text.startswith(SCHEME):
        _check_suffix(text, parse(text).file)
    elif entry is None:
        return _local_file(text)
    elif constructor in entry.also_starts:
        logger.warning(
            "%s: the weights of %s; a %s starts from them and must be trained further before use.",
            *(entry.name, entry.constructor, constructor),
        )
    source = text if text.startswith(SCHEME) else entry.source
    if source.startswith("https:"):
        raise OSError(
            f"weights={text!r} is not on the hub: its authors keep {entry.name} at {source}. "
            "Download it in a browser, and pass its path as weights=."
        )
    if source.startswith("package:"):
        return LocalFile(text, shipped_path(source.removeprefix("package:")), entry)
    return LocalFile(text, _download(parse(source), entry), entry)


def _download(address: Address, entry: Checkpoint | None) -> Path:
    """Return the local copy of a file on the hub, at the revision of its catalog entry."""
    if entry is None or address.revision not in (None, entry.revision):
        return download(address)
    path = download(address._replace(revision=entry.revision), entry.sha256)
    if not entry.revision and not entry.sha256:
        commit = path.parent.name
        logger.warning(
            "%s: neither the revision nor the SHA-256 of this file is known to keras_vitx, which "
            "trusts the hub (commit %s, hash %s). weights='%s@%s' pins this version.",
            *(entry.name, commit, path.resolve().name, entry.source, commit),
        )
    return path


def _local_file(text: str) -> LocalFile:
    path = Path(text).expanduser()
    writer = writer_of(path)
    if writer == "Keras":
        return LocalFile(text, path)
    if writer == "Transformers":
        if not (path / SAFETENSORS).is_file():
            raise FileNotFoundError(
                f"weights={text!r} is a directory of Transformers without {SAFETENSORS}: save the "
                "model there in one such file, or give the path of another."
            )
        return LocalFile(text, path / SAFETENSORS, writer=writer)
    if writer is None and path.is_dir():
        raise IsADirectoryError(
            f"weights={text!r} is a directory without {CONFIG}: expected a weights file, or a "
            "directory written by keras_vitx.save or Keras."
        )
    if writer is None and not path.exists():
        raise FileNotFoundError(f"weights={text!r}: there is no such file.")
    if not writer:
        _check_suffix(text, path.name)
    try:
        if writer:
            with open_directory(path) as (config, name, _):
                from_config(config)
            return LocalFile(text, path / name, writer=writer)
        # The authors' file names end in the first digits of the hash.
        digest = re.search(r"-([0-9a-f]{8})\.pth$", path.name)
        if digest and any((c.url or "").endswith(f"/{path.name}") for c in CHECKPOINTS):
            check_hash(path, digest[1])
    except ValueError as error:
        raise ValueError(f"weights={text!r}: {error}") from error
    return LocalFile(text, path)


def _check_suffix(weights: str, file: str) -> None:
    if suffix_of(file):
        return
    if file.endswith((".h5", ".hdf5")):
        raise ValueError(
            f"weights={weights!r} is of Keras's legacy format, which is not read. Save the weights "
            "by `model.save_weights` to a file that ends in .weights.h5."
        )
    raise ValueError(f"weights={weights!r} should end in one of: {', '.join(READERS)}.")


def load(
    model,
    source: LocalFile | None,
    sizes: Sizes | None = None,
    rebuild: Callable[[int], Any] | None = None,
    strict: bool = True,
) -> Any:
    """Load a weights file into a built model, and return the model.

    Either every variable is assigned, or a ValueError lists what doesn't fit. Unless `strict`, what
    the file lacks keeps its initial values, and what only the file has is left out. If the
    classifier has another number of classes, `rebuild` makes the model for that number; without it,
    the classifier keeps its weights, with a warning. The metadata of the file sets
    `model.preprocessing` and, with the classifier, `model.class_names`.
    """
    if source is None:
        return model
    path, name = source.path, source.path.name
    try:
        with contextlib.ExitStack() as stack:
            if source.writer == LIBRARY:
                config, name, path = stack.enter_context(open_directory(path.parent))
            file = stack.enter_context(open_weights(path, model, name))
            if source.writer == LIBRARY:
                file = file._replace(description=from_config(config))
            # All published checkpoints are of square images.
            entry = source.checkpoint
            headless = entry is not None and entry.classes == 0
            file = file._replace(square=entry is not None, headless=headless)
            conversion = convert(file, model, sizes, strict)
            if rebuild and conversion.classes is not None and not conversion.head:
                model = rebuild(conversion.classes)
                conversion = convert(file, model, sizes, strict)
            description = source.checkpoint or file.description
            if source.writer == "Transformers":
                description = description_of(path.parent, model)
            names = description and conversion.head and description.class_names
            if names and len(names) != conversion.classes:
                raise ValueError(
                    f"The file names {len(names)} classes but has weights for {conversion.classes}."
                )
            for variable, array in conversion.arrays:
                variable.assign(array)
    except ValueError as error:
        location = "" if str(source.path) == source.weights else f" ({source.path})"
        raise ValueError(f"weights={source.weights!r}{location}: {error}") from error
    warn_not_finite(model, source.weights)
    if description is not None:
        if description.preprocessing is not None:
            model.preprocessing = description.preprocessing.for_channels(model.input_shape[-1])
        if conversion.head:
            model.class_names = description.class_names
    # Fine-tuning must know a trained head even without class names.
    model.head_loaded = conversion.head
    model.training_record = {"base": _base(source) + " (in part)" * (not strict)}
    if conversion.classes is not None and not conversion.head:
        logger.warning(
            "%s: all weights loaded except the head's: the file's head has %d classes.",
            *(source.weights, conversion.classes),
        )
    if not strict:
        logger.warning(
            "%s: %d variables start anew (%s); %d arrays of the file are left out (%s).",
            *(source.weights, len(conversion.started), _listed(conversion.started)),
            *(len(conversion.unused), _listed(conversion.unused)),
        )
    return model


def _base(source: LocalFile) -> str:
    """Return the name of a checkpoint and its license, an address, or the name of a file."""
    entry = source.checkpoint
    if entry is not None:
        return f"{entry.name} ({entry.license or 'no license stated'})"
    return source.weights if source.weights.startswith(SCHEME) else Path(source.weights).name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(abbreviate(names)) or "none"


def warn_not_finite(model, source: str) -> None:
    """Log a warning if weights of a model, loaded from `source`, are not finite."""
    values = ((each.path, keras.ops.convert_to_numpy(each.value)) for each in model.weights)
    paths = [path for path, value in values if not np.isfinite(value.astype("float32")).all()]
    if paths:
        logger.warning(
            "%s: %d variables hold NaN or infinite values, and so may all predictions: %s.",
            *(source, len(paths), ", ".join(abbreviate(paths))),
        )


def load_weights(model, weights: str | os.PathLike | None, strict: bool = True) -> None:
    """Load the weights that `weights` refers to into a built model.

    Args:
        model: A built model of this package.
        weights: None, the name of a checkpoint, "hf://owner/repo" or "hf://owner/repo/file" (with
            "@revision" after the repository for a branch, tag or commit), the path of a file
            (`.safetensors`; `.pth`, `.pt`, `.bin`, `.ckpt` or `.pth.tar`; `.weights.h5`,
            `.weights.json` or `.keras`), or a directory that `kv.save`, Keras or Transformers
            wrote.
        strict: Whether the file must have all weights of the model and no others. If not, weights
            that it lacks keep their values, and others are left out; a log line lists both.

    Raises:
        ValueError: if the name is unknown, or the file is damaged or doesn't fit the model.
        OSError: if the file doesn't exist or can't be downloaded.
        ImportError: if a PyTorch file is given and PyTorch isn't installed.
    """
    load(model, resolve(weights, None, tuple(model.input_shape[1:3])), strict=strict)
