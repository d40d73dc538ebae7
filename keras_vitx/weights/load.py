"""`weights=`: from a name or a path to a file, and from the file to the model."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from keras_vitx.weights.catalog import CHECKPOINTS, IMAGENET, Checkpoint, find
from keras_vitx.weights.convert import convert
from keras_vitx.weights.description import Description
from keras_vitx.weights.hub import SCHEME, download, parse, shipped, verified
from keras_vitx.weights.identity import Sizes
from keras_vitx.weights.reading import KINDS, opened, suffix_of
from keras_vitx.weights.reading.folder import CONFIG, read_config
from keras_vitx.weights.reading.tensors import describing

logger = logging.getLogger("keras_vitx")


@dataclass(frozen=True)
class Resolved:
    """A weights file on this machine.

    Attributes:
        weights: What the user asked for, for errors.
        path: The file.
        checkpoint: Its entry in the catalogue, if it has one.
        description: What the folder around it says about its model, if anything.
    """

    weights: str
    path: Path
    checkpoint: Checkpoint | None = None
    description: Description | None = None

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
    """Find the file that `weights` means, downloading it if necessary.

    Called before a model is built, so that a wrong name costs no time.

    Args:
        weights: None, "imagenet", the name of a checkpoint, "hf://owner/repo" or
            "hf://owner/repo/file" (with "@revision" after the repository to pin a
            branch, tag or commit), the path of a file (`.safetensors`, `.pth`, `.pt`,
            `.bin`, `.pth.tar`, `.weights.h5` or `.keras`), or a folder that `kv.save` wrote.
        constructor: The function that builds the model, such as "CaiT_XXS24",
            to which the names of checkpoints belong; None for any.
        image_size: Side or (height, width) of its images in pixels; "imagenet"
            takes the checkpoint with the nearest resolution.
        distillation_token: Whether the model has DeiT's second token.

    Returns:
        The argument of `load`; None for None.

    Raises:
        ValueError: when the name or the format of the file is unknown.
        OSError: when the file doesn't exist or can't be downloaded.
    """
    if weights is None:
        return None
    if not isinstance(weights, (str, os.PathLike)):
        raise ValueError(
            f"weights should be a name, a path or None, not {weights!r} ({type(weights).__name__})."
        )
    text = os.fspath(weights)
    if text.startswith(SCHEME):
        return _on_the_hub(text)
    # A folder named "imagenet" doesn't hide the name.
    known = text == IMAGENET or any(text == c.name for c in CHECKPOINTS)
    if isinstance(weights, os.PathLike) or (not known and _is_path(text)):
        return _existing(text)
    checkpoint = find(text, constructor, image_size, distillation_token)
    if constructor in checkpoint.also_starts:
        logger.warning(
            "%s: the weights of %s; a %s starts from them and must be trained before use.",
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
        path = download(f"{checkpoint.source}/{checkpoint.file}", checkpoint.sha256)
    else:
        path = shipped(checkpoint.source.removeprefix("package:"))
    return Resolved(text, path, checkpoint)


def load(model, resolved: Resolved | None, sizes: Sizes | None = None) -> None:
    """Give a built model the weights of a file.

    Every variable of the model gets its array, or an error lists what doesn't fit and the
    model stays as it was. If the number of classes differs, the model's classifier stays
    as it is and a log line says so. The catalogue, or a file that this package wrote, also
    sets `model.preprocessing` and, along with the classifier, `model.class_names`.

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
        with opened(resolved.path, model, resolved.description) as tensors:
            conversion = convert(tensors, model, sizes)
            facts = resolved.checkpoint or tensors.description
            names = facts and conversion.head and facts.class_names
            if names and len(names) != conversion.classes:
                raise ValueError(
                    f"The file names {len(names)} classes and has weights for {conversion.classes}."
                )
            for variable, array in conversion:
                variable.assign(array)
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
    # Used in fine-tuning: without class names, nothing else marks a trained head.
    model.head_loaded = conversion.head
    if conversion.classes is not None and not conversion.head:
        logger.warning(
            "%s: all weights loaded except the head's, which the file has for %d classes.",
            resolved.weights,
            conversion.classes,
        )


def load_weights(model, weights: str | os.PathLike | None) -> None:
    """Give a built model the weights that `weights` means.

    Args:
        model: A built model of the zoo.
        weights: As in `resolve`, except "imagenet", which needs a constructor.

    Raises:
        ValueError, OSError, ImportError: as `resolve` and `load`.
    """
    load(model, resolve(weights, None, tuple(model.input_shape[1:3])))


def _on_the_hub(text: str) -> Resolved:
    address = parse(text)
    _check_kind(text, address.file)
    same = (c for c in CHECKPOINTS if c.source == SCHEME + address.repository)
    checkpoint = next((c for c in same if c.file == address.file), None)
    return Resolved(text, download(text), checkpoint)


def _is_path(text: str) -> bool:
    return suffix_of(Path(text)) is not None or "/" in text or Path(text).exists()


def _existing(text: str) -> Resolved:
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(text, path)
    if not path.is_file():
        raise FileNotFoundError(f"weights={text!r}: there is no such file.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"weights={text!r}: the file may not be read.")
    _check_kind(text, path.name)
    digest = next((c.url_digest for c in CHECKPOINTS if c.url_file == path.name), None)
    try:
        return Resolved(text, verified(path, digest))
    except ValueError as error:
        raise ValueError(f"weights={text!r}: {error}") from error


def _in_folder(text: str, folder: Path) -> Resolved:
    if not (folder / CONFIG).is_file():
        raise IsADirectoryError(
            f"weights={text!r} is a folder without {CONFIG}: neither a file of weights nor a "
            "folder that keras_vitx.save wrote."
        )
    try:
        config, weights = read_config(folder / CONFIG)
        with describing(CONFIG):
            description = Description.from_config(config)
    except ValueError as error:
        raise ValueError(f"weights={text!r}: {error}") from error
    if not (folder / weights).is_file():
        raise FileNotFoundError(f"weights={text!r}: there is no {weights} in the folder.")
    return Resolved(text, folder / weights, description=description)


def _check_kind(weights: str, file: str) -> None:
    if suffix_of(Path(file)) is None:
        raise ValueError(f"weights={weights!r} should end in one of: {', '.join(KINDS)}.")
