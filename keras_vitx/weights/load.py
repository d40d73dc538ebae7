"""From what `weights=` says to a model that has them."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from keras_vitx.weights.catalog import CHECKPOINTS, IMAGENET, Checkpoint, find
from keras_vitx.weights.convert import convert
from keras_vitx.weights.hub import SCHEME, download, parse, shipped, verified
from keras_vitx.weights.identity import Sizes
from keras_vitx.weights.reading import KINDS, opened, suffix_of

logger = logging.getLogger("keras_vitx")


@dataclass(frozen=True)
class Resolved:
    """A file that stands on this machine.

    Attributes:
        weights: What was asked for, for errors.
        path: The file.
        checkpoint: Its entry in the catalogue, if it has one.
    """

    weights: str
    path: Path
    checkpoint: Checkpoint | None = None

    @property
    def image_size(self) -> int | None:
        """Side of the images that the catalogue's checkpoint was trained on."""
        return self.checkpoint.image_size if self.checkpoint else None


def resolve(
    weights: str | os.PathLike | None,
    constructor: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> Resolved | None:
    """Find the file that `weights` means, downloading it if need be.

    Meant to run before a model is built, so that a wrong name costs no time.

    Args:
        weights: None, "imagenet", the name of a checkpoint, "hf://owner/repo",
            "hf://owner/repo/file", or the path of a file (`.safetensors`,
            `.pth`, `.pt`, `.bin`, `.pth.tar`, `.weights.h5` or `.keras`).
        constructor: The function that builds the model, such as "CaiT_XXS24",
            to which the names of checkpoints belong; None for any.
        image_size: Side or (height, width) of its images in pixels; "imagenet"
            takes the checkpoint with the nearest resolution.
        distillation_token: Whether the model has DeiT's second token.

    Returns:
        What `load` takes; None for None.

    Raises:
        ValueError: when the name is unknown or the kind of file is.
        OSError: when there is no such file or it can't be downloaded.
    """
    if weights is None:
        return None
    if not isinstance(weights, (str, os.PathLike)):
        raise ValueError(
            f"weights should be a name, a path or None, not {weights!r} ({type(weights).__name__})."
        )
    text = os.fspath(weights)
    if text.startswith(SCHEME):
        _check_kind(text, parse(text)[1])
        checkpoint = next((c for c in CHECKPOINTS if c.source == text.rstrip("/")), None)
        return Resolved(text, download(text), checkpoint)
    # A folder named "imagenet" doesn't hide the name.
    known = text == IMAGENET or any(text == c.name for c in CHECKPOINTS)
    if isinstance(weights, os.PathLike) or (not known and _is_path(text)):
        return Resolved(text, _existing(text))
    checkpoint = find(text, constructor, image_size, distillation_token)
    if constructor in checkpoint.also_starts:
        logger.warning(
            "%s: the weights of %s, from which a %s starts; it is to be trained before it is used.",
            checkpoint.name,
            checkpoint.constructor,
            constructor,
        )
    if checkpoint.source.startswith("https:"):
        raise OSError(
            f"weights={text!r} is on no hub: its authors keep {checkpoint.name} at "
            f"{checkpoint.source}. Load it with a browser, and give its path as weights=."
        )
    if checkpoint.source.startswith(SCHEME):
        path = download(f"{checkpoint.source}/{checkpoint.file}", checkpoint.sha256)
    else:
        path = shipped(checkpoint.source.removeprefix("package:"))
    return Resolved(text, path, checkpoint)


def load(model, resolved: Resolved | None, sizes: Sizes | None = None) -> None:
    """Give a built model the weights of a file.

    Every variable of the model gets its array, or an error lists what doesn't
    fit and the model stays as it was. Where the number of classes differs, the
    model's classifier stays as it is and a log line says so. The catalogue, or
    a file of ours, also sets `model.preprocessing` and, along with the
    classifier, `model.class_names`.

    Args:
        model: The model, built.
        resolved: What `resolve` returned; None does nothing.
        sizes: What the files of known sizes look like, to name one in errors.

    Raises:
        ValueError: when the file is damaged or doesn't fit the model.
        ImportError: when a PyTorch file is given and PyTorch isn't installed.
    """
    if resolved is None:
        return
    try:
        with opened(resolved.path, model) as tensors:
            conversion = convert(tensors, model, sizes)
            for variable, array in conversion:
                variable.assign(array)
            facts = resolved.checkpoint or tensors.description
    except ValueError as error:
        named = f"weights={resolved.weights!r}"
        if str(resolved.path) != resolved.weights:
            named += f" ({resolved.path})"
        raise ValueError(f"{named}: {error}") from error
    if facts is not None:
        if facts.preprocessing is not None:
            model.preprocessing = facts.preprocessing.for_channels(model.input_shape[-1])
        if conversion.head:
            model.class_names = facts.class_names
    # For a later fine-tuning: without class names, nothing else tells a trained head.
    model.head_loaded = conversion.head
    if conversion.classes is not None and not conversion.head:
        logger.warning(
            "%s: all weights loaded but the head's, which the file has for %d classes.",
            resolved.weights,
            conversion.classes,
        )


def load_weights(model, weights: str | os.PathLike | None) -> None:
    """Give a model that already stands the weights that `weights` means.

    Args:
        model: A built model of the zoo.
        weights: As in `resolve`; "imagenet" needs a constructor and is
            understood only there.

    Raises:
        ValueError, OSError, ImportError: as `resolve` and `load`.
    """
    load(model, resolve(weights, None, tuple(model.input_shape[1:3])))


def _is_path(text: str) -> bool:
    return suffix_of(Path(text)) is not None or "/" in text or Path(text).exists()


def _existing(text: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():
        raise IsADirectoryError(f"weights={text!r} is a folder, not a file of weights.")
    if not path.is_file():
        raise FileNotFoundError(f"weights={text!r}: there is no such file.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"weights={text!r}: the file may not be read.")
    _check_kind(text, path.name)
    digest = next((c.url_digest for c in CHECKPOINTS if c.url_file == path.name), None)
    try:
        return verified(path, digest)
    except ValueError as error:
        raise ValueError(f"weights={text!r}: {error}") from error


def _check_kind(weights: str, file: str) -> None:
    if suffix_of(Path(file)) is None:
        raise ValueError(f"weights={weights!r} should end in one of: {', '.join(KINDS)}.")
