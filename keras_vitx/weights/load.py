"""The argument `weights=`: finding the file, and loading it into the model."""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_vitx.weights.catalog import CHECKPOINTS, DATASETS, Checkpoint, find
from keras_vitx.weights.convert import abbreviated, convert
from keras_vitx.weights.description import Description
from keras_vitx.weights.folder import CONFIG, open_folder
from keras_vitx.weights.hub import SCHEME, SHA256, Address, download, parse, shipped, verified
from keras_vitx.weights.names import Sizes
from keras_vitx.weights.reading import KINDS, Tensors, describing, open_weights, suffix_of

logger = logging.getLogger("keras_vitx")


@dataclass(frozen=True)
class Resolved:
    """A weights file on this machine.

    Attributes:
        weights: The argument that the user passed, for errors.
        path: The file.
        checkpoint: Its catalogue entry, if any.
        in_folder: Whether the file is in a folder that `kv.save` wrote.
    """

    weights: str
    path: Path
    checkpoint: Checkpoint | None = None
    in_folder: bool = False

    @property
    def image_size(self) -> int | None:
        """Side of the training images of a catalogue checkpoint, in pixels."""
        return self.checkpoint.image_size if self.checkpoint else None


def entry_of(
    weights: str | os.PathLike | None,
    constructor: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> Checkpoint | None:
    """Return the catalogue entry of the file that `weights` refers to; None if it has none.

    Nothing is downloaded. The arguments and the errors are those of `resolve`.
    """
    if weights is None:
        return None
    if not isinstance(weights, (str, os.PathLike)):
        raise ValueError(
            f"weights should be a name, a path or None, not {weights!r} ({type(weights).__name__})."
        )
    text = os.fspath(weights)
    if text.startswith(SCHEME):
        address = parse(text)
        same = (c for c in CHECKPOINTS if c.source == SCHEME + address.repository)
        return next((c for c in same if c.file == address.file), None)
    # A folder named "imagenet" must not shadow the name.
    known = text in DATASETS or any(text == c.name for c in CHECKPOINTS)
    if isinstance(weights, os.PathLike) or (not known and _is_path(text)):
        return None
    return find(text, constructor, image_size, distillation_token)


def resolve(
    weights: str | os.PathLike | None,
    constructor: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> Resolved | None:
    """Find the file that `weights` refers to, downloading it if necessary.

    Called before the model is built, so that a wrong name fails fast.

    Args:
        weights: None, "imagenet", the name of a checkpoint, "hf://owner/repo" or
            "hf://owner/repo/file" (with "@revision" after the repository to pin a
            branch, tag or commit), the path of a file (`.safetensors`, `.pth`, `.pt`,
            `.bin`, `.pth.tar`, `.weights.h5` or `.keras`), or a folder that `kv.save` wrote.
        constructor: Name of the constructor of the model, such as "CaiT_XXS24", whose
            checkpoint names are accepted; None for any.
        image_size: Side or (height, width) of the model's images, in pixels; "imagenet"
            selects the checkpoint with the nearest resolution.
        distillation_token: Whether the model has DeiT's distillation token.

    Returns:
        The file, to be passed to `load`; None for None.

    Raises:
        ValueError: if the name or the file format is unknown.
        OSError: if the file doesn't exist or can't be downloaded.
    """
    checkpoint = entry_of(weights, constructor, image_size, distillation_token)
    if weights is None:
        return None
    text = os.fspath(weights)
    if text.startswith(SCHEME):
        _check_kind(text, parse(text).file)
        return Resolved(text, _downloaded(parse(text), checkpoint), checkpoint)
    if checkpoint is None:
        return _existing(text)
    if constructor in checkpoint.also_starts:
        logger.warning(
            "%s: the weights of %s; a %s starts from them and must be trained further before use.",
            checkpoint.name,
            checkpoint.constructor,
            constructor,
        )
    if checkpoint.source.startswith("https:"):
        raise OSError(
            f"weights={text!r} is not on the hub: its authors keep {checkpoint.name} at "
            f"{checkpoint.source}. Download it in a browser, and give its path as weights=."
        )
    if checkpoint.source.startswith(SCHEME):
        address = Address(checkpoint.source.removeprefix(SCHEME), checkpoint.file)
        path = _downloaded(address, checkpoint)
    else:
        path = shipped(checkpoint.source.removeprefix("package:"))
    return Resolved(text, path, checkpoint)


def load(model, resolved: Resolved | None, sizes: Sizes | None = None) -> None:
    """Load the weights of a file into a built model.

    Either every variable is assigned, or an error lists what doesn't fit and the model is
    unchanged. If the number of classes differs, the classifier keeps its current weights
    and a warning is logged. A catalogue entry, or a file written by this package, also sets
    `model.preprocessing` and, if the classifier is loaded, `model.class_names`.

    Args:
        model: A built model.
        resolved: The result of `resolve`; None does nothing.
        sizes: The identity of each known size, used to name one in errors.

    Raises:
        ValueError: if the file is damaged or doesn't fit the model.
        ImportError: if a PyTorch file is given and PyTorch isn't installed.
    """
    if resolved is None:
        return
    odd = []
    try:
        with _open(resolved, model) as tensors:
            conversion = convert(tensors, model, sizes)
            description = resolved.checkpoint or tensors.description
            names = description and conversion.head and description.class_names
            if names and len(names) != conversion.classes:
                raise ValueError(
                    f"The file names {len(names)} classes but has weights for {conversion.classes}."
                )
            for variable, array in conversion:
                if not np.isfinite(array).all():
                    odd.append(variable.path)
                variable.assign(array)
    except ValueError as error:
        named = f"weights={resolved.weights!r}"
        if str(resolved.path) != resolved.weights:
            named += f" ({resolved.path})"
        raise ValueError(f"{named}: {error}") from error
    warn_not_finite(odd, resolved.weights)
    if description is not None:
        if description.preprocessing is not None:
            model.preprocessing = description.preprocessing.for_channels(model.input_shape[-1])
        if conversion.head:
            model.class_names = description.class_names
    # For fine-tuning: without class names, nothing else marks a trained head.
    model.head_loaded = conversion.head
    if conversion.classes is not None and not conversion.head:
        logger.warning(
            "%s: all weights loaded except the head's: the file's head has %d classes.",
            resolved.weights,
            conversion.classes,
        )


@contextlib.contextmanager
def _open(resolved: Resolved, model) -> Iterator[Tensors]:
    if not resolved.in_folder:
        with open_weights(resolved.path, model) as tensors:
            yield tensors
        return
    with open_folder(resolved.path.parent) as (config, weights, path):
        with describing(CONFIG):
            description = Description.from_config(config)
        with open_weights(path, model, description, suffix_of(Path(weights))) as tensors:
            yield tensors


def warn_not_finite(paths: Sequence[str], source: str) -> None:
    """Log a warning about variables whose values, from `source`, are not all finite."""
    if paths:
        logger.warning(
            "%s: %d variables hold NaN or infinite values, and so may all predictions: %s.",
            source,
            len(paths),
            ", ".join(abbreviated(paths)),
        )


def load_weights(model, weights: str | os.PathLike | None) -> None:
    """Load the weights that `weights` refers to into a built model.

    Args:
        model: A built model of this package.
        weights: As in `resolve`, except "imagenet", which needs a constructor.

    Raises:
        ValueError, OSError, ImportError: as `resolve` and `load`.
    """
    load(model, resolve(weights, None, tuple(model.input_shape[1:3])))


def _downloaded(address: Address, checkpoint: Checkpoint | None) -> Path:
    """Return the local copy of a file on the hub, at the revision of its catalogue entry."""
    if checkpoint and not address.revision:
        address = address._replace(revision=checkpoint.revision)
    if checkpoint is None or address.revision != checkpoint.revision:
        return download(address)
    path = download(address, checkpoint.sha256)
    _warn_not_pinned(checkpoint, path)
    return path


def _warn_not_pinned(checkpoint: Checkpoint, path: Path) -> None:
    """Log, once, that a checkpoint can't be checked: nothing says which file it should be."""
    if checkpoint.revision or checkpoint.sha256 or checkpoint.name in _warned:
        return
    _warned.add(checkpoint.name)
    commit, blob = path.parent.name, path.resolve().name
    logger.warning(
        "%s: neither the revision nor the SHA-256 of this file is known to keras_vitx, which takes "
        "the hub's word for it (commit %s, %s). weights='%s@%s' keeps this version.",
        checkpoint.name,
        commit,
        f"SHA-256 {blob}" if SHA256.fullmatch(blob) else "SHA-256 not stated",
        checkpoint.source,
        commit,
    )


_warned: set[str] = set()


def _is_path(text: str) -> bool:
    return suffix_of(Path(text)) is not None or "/" in text or Path(text).exists()


def _existing(text: str) -> Resolved:
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(text, path)
    if not path.is_file():
        raise FileNotFoundError(f"weights={text!r}: there is no such file.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"weights={text!r}: no permission to read the file.")
    _check_kind(text, path.name)
    digest = next((c.url_digest for c in CHECKPOINTS if c.url_file == path.name), None)
    try:
        return Resolved(text, verified(path, digest))
    except ValueError as error:
        raise ValueError(f"weights={text!r}: {error}") from error


def _in_folder(text: str, folder: Path) -> Resolved:
    if not (folder / CONFIG).is_file():
        raise IsADirectoryError(
            f"weights={text!r} is a folder without {CONFIG}: expected a weights file, or a folder "
            "written by keras_vitx.save."
        )
    try:
        with open_folder(folder) as (config, weights, _), describing(CONFIG):
            Description.from_config(config)
    except ValueError as error:
        raise ValueError(f"weights={text!r}: {error}") from error
    return Resolved(text, folder / weights, in_folder=True)


def _check_kind(weights: str, file: str) -> None:
    if suffix_of(Path(file)) is None:
        raise ValueError(f"weights={weights!r} should end in one of: {', '.join(KINDS)}.")
