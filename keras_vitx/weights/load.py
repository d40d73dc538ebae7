"""What `weights=` names: finding the file, opening it, and loading it into a model."""

import contextlib
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from keras_vitx.checks import check
from keras_vitx.files import local_path
from keras_vitx.keras_internals import sublayers
from keras_vitx.text import shorten
from keras_vitx.weights.catalog import BY_NAME, CHECKPOINTS, DATASETS, Checkpoint, find
from keras_vitx.weights.convert import convert
from keras_vitx.weights.hub import (
    SAFETENSORS,
    SCHEME,
    download,
    parse,
    shipped_path,
    stated_activation,
    stated_preprocessing,
)
from keras_vitx.weights.reading import READERS, WeightsFile, open_weights, suffix_of

logger = logging.getLogger("keras_vitx")
GELUS = {"gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"}
"""By erf and tanh, which differ by 5e-4 at most; CLIP's `"quick_gelu"` differs by .02."""


class Source(NamedTuple):
    """What `weights=` names."""

    weights: str  # The user's argument.
    checkpoint: Checkpoint | None = None  # Its catalog entry.


def find_source(
    weights: str | os.PathLike | None,
    constructor: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> Source | None:
    """Find what `weights` names (see `load_weights` and `find`), without a download.

    Raises a ValueError for an unknown name or format, and an OSError for a file that doesn't exist.
    """
    if weights is None:
        return None
    text = os.fsdecode(weights)
    if text.startswith(SCHEME):
        address = parse(text)
        _check_suffix(text, address.file)
        is_weights = address.file == SAFETENSORS
        hub = {entry.source: entry for entry in CHECKPOINTS} if is_weights else {}
        return Source(text, hub.get(SCHEME + address.repository))
    # A directory named "imagenet" must not shadow the name.
    is_name = text in DATASETS or text in BY_NAME
    is_path = suffix_of(text) is not None or "/" in text or Path(text).exists()
    if isinstance(weights, os.PathLike) or (is_path and not is_name):
        _check_suffix(text, text)
        if not local_path(text).is_file():
            raise FileNotFoundError(f"weights={text!r}: there is no such file.")
        return Source(text)
    checkpoint = find(text, constructor, image_size, distillation_token)
    if checkpoint.source.startswith("https:"):
        raise OSError(
            f"weights={text!r} is not on the hub: its authors keep {checkpoint.name} at "
            f"{checkpoint.source}. Download it in a browser, and pass its path as weights=."
        )
    if constructor in checkpoint.also_starts:
        logger.warning(
            "%s: the weights of %s; a %s starts from them and must be trained further before use.",
            *(checkpoint.name, checkpoint.constructor, constructor),
        )
    return Source(text, checkpoint)


def _beside(address: str, name: str) -> Path:
    """Return the path of a file beside another one on the hub, downloaded."""
    parts = parse(address)
    return download(parts._replace(file=str(PurePosixPath(parts.file).with_name(name))))


def _check_suffix(weights: str, file: str) -> None:
    if not suffix_of(file):
        raise ValueError(f"weights={weights!r} should end in one of: {', '.join(READERS)}.")


def path_of(source: Source) -> Path:
    """Return the path of a source's file, downloaded if it is not in the hub's cache."""
    text, checkpoint = source
    if text.startswith(SCHEME):
        return download(parse(text))
    if checkpoint is None:
        return local_path(text)
    if checkpoint.source.startswith("package:"):
        return shipped_path(checkpoint.source.removeprefix("package:"))
    return download(parse(checkpoint.source))


@contextlib.contextmanager
def open_source(source: Source | None) -> Iterator[WeightsFile | None]:
    """Open the file of a source, with what the catalog knows of it; None for None."""
    if source is None:
        yield None
        return
    with open_weights(path := path_of(source)) as file:
        if (known := source.checkpoint) is None and file.preprocessing is None:
            is_remote = source.weights.startswith(SCHEME)
            find = partial(_beside, source.weights) if is_remote else path.with_name
            file = file._replace(preprocessing=stated_preprocessing(find))
            file = file._replace(activation=stated_activation(find))
            if is_remote and file.preprocessing is None:
                text = "%s does not say how images are normalized: see `model.preprocessing`."
                logger.warning(text, source.weights)
        elif known is not None:
            # All published checkpoints are of square images.
            file = file._replace(square=True, headless=known.classes == 0)
            file = file._replace(class_names=known.class_names, preprocessing=known.preprocessing)
        yield file


def load(model, file: WeightsFile, weights: str, strict: bool = True) -> None:
    """Assign the arrays of an open file, which the user calls `weights`, to a built model.

    Either every variable is assigned, or a ValueError lists what doesn't fit. Unless `strict`, what
    the file lacks keeps its initial values, and what only the file has is left out. A classifier of
    another number of classes keeps its weights, with a warning. The file also sets
    `model.preprocessing` and, with the classifier, `model.class_names`.
    """
    try:
        conversion = convert(file, model, strict)
    except ValueError as error:
        raise ValueError(f"weights={weights!r}: {error}") from error
    if file.activation is not None:
        _check_activation(model, file.activation, weights)
    for variable, array in conversion.arrays:
        variable.assign(array)
    if file.preprocessing is not None:
        model.preprocessing = file.preprocessing.for_channels(model.input_shape[-1])
    if conversion.head:
        model.class_names = file.class_names
    # Fine-tuning must know a trained head even without class names.
    model.head_loaded = conversion.head
    if file.classes is not None and conversion.head is False:
        logger.warning(
            "%s: all weights loaded except the head's: the file's head has %d classes.",
            *(weights, file.classes),
        )
    if not strict:
        logger.warning(
            "%s: %d variables start anew (%s); %d arrays of the file are left out (%s).",
            *(weights, len(conversion.started), shorten(conversion.started, 8) or "none"),
            *(len(conversion.unused), shorten(conversion.unused, 8) or "none"),
        )


def _check_activation(model, stated: str, weights: str) -> None:
    """Raise a ValueError if the MLPs have another activation than a file's settings state."""
    # DINOv2's settings say "gelu" where its gated MLPs compute SiLU.
    mlps = [x for x in sublayers(model) if x.name == "mlp" and not getattr(x, "gated", False)]
    rule = f"`activation` must be {stated!r}, the hidden_act in the settings of {weights!r}."
    for activation in {getattr(mlp, "activation", stated) for mlp in mlps}:
        fits = activation == stated or {activation, stated} <= GELUS
        check(fits, rule, activation)


def load_weights(model, weights: str | os.PathLike | None, strict: bool = True) -> None:
    """Load the weights that `weights` refers to into a built model.

    Args:
        model: A built model of this package.
        weights: None, the name of a checkpoint, "hf://owner/repo" or "hf://owner/repo/file" (with
            "@revision" after the repository for a branch, tag or commit), or the path of a file:
            `.safetensors`; `.pth`, `.pt`, `.bin`, `.ckpt` or `.pth.tar`; `.weights.h5` or `.keras`.
        strict: Whether the file must have all weights of the model and no others. If not, weights
            that it lacks keep their values, and others are left out; a log line lists both.

    Raises:
        ValueError: if the name is unknown, or the file is damaged or doesn't fit the model.
        OSError: if the file doesn't exist or can't be downloaded.
        ImportError: if a PyTorch file is given and PyTorch isn't installed.
    """
    with open_source(find_source(weights, None, tuple(model.input_shape[1:3]))) as file:
        if file is not None:
            load(model, file, os.fsdecode(weights), strict)
