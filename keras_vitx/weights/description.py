"""Metadata of saved models, and the directories that `kv.save` writes."""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from keras_vitx.checks import check
from keras_vitx.files import is_being_moved
from keras_vitx.outputs import class_names_of
from keras_vitx.positions import Grid
from keras_vitx.preprocessing import Preprocessing

LIBRARY = "keras_vitx"
CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
# Keras's own format, for variables that have no name in PyTorch checkpoints.
KERAS_WEIGHTS = "model.weights.h5"

# JSON takes up to thirty times its length in memory. The config of the largest size has 115 kB.
MAX_JSON = 2 << 20

ATTEMPTS = 50
PAUSE = 0.01  # seconds between them


class FileError(ValueError):
    """A file is not accepted; the message says why."""


def parse_json(text: str | bytes) -> Any:
    """Parse the JSON of a file; a FileError if it is too long."""
    if len(text) > MAX_JSON:
        raise FileError(f"Its JSON must have at most {MAX_JSON:,} bytes. Received: {len(text):,}.")
    return json.loads(text)


def cause_of(error: Exception) -> str:
    """Return the type and the first line of an error, without what PyTorch adds to it."""
    line = str(error).rpartition("WeightsUnpickler error: ")[2].lstrip().split("\n")[0]
    line = re.sub(r"\x1b\[\d*m", "", line)[:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


class Description(NamedTuple):
    """Metadata of a saved model."""

    model: str  # Its name.
    grid: Grid | None  # (rows, columns) of its patches, if it has positions.
    class_names: tuple[str, ...] | None
    preprocessing: Preprocessing | None


def metadata_of(model) -> dict[str, str]:
    """Return a model's metadata for safetensors files: JSON strings."""
    names = class_names_of(model)
    preprocessing = getattr(model, "network_preprocessing", getattr(model, "preprocessing", None))
    values = {
        "model": model.name,
        "family": getattr(model, "family", None),
        "grid": next((layer.grid for layer in model.layers if hasattr(layer, "grid")), None),
        "class_names": None if names is None else [str(name) for name in names],
        "preprocessing": preprocessing and preprocessing.to_dict(),
    }
    # "format" marks the names and layouts as those of PyTorch.
    values = {key: json.dumps(value) for key, value in values.items()}
    return {"format": "pt", "library": LIBRARY, **values}


def from_metadata(metadata: Mapping[str, str] | None) -> Description | None:
    """Read the metadata that `metadata_of` returns; None for another library's."""
    if not metadata or metadata.get("library") != LIBRARY:
        return None
    try:
        values = {key: parse_json(metadata[key]) for key in Description._fields}
    except (KeyError, ValueError, RecursionError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise FileError(f"The file's metadata can't be used ({cause:.100}).") from error
    return _description("metadata", **values)


def from_config(config: Any) -> Description:
    """Read the metadata in the config of a saved `Chain`, without building the model."""
    try:
        config = config["config"]
        grids = [layer["config"].get("grid") for layer in config["layers"]]
        names = config.get("class_names")
        return _description(
            CONFIG,
            model=config.get("name"),
            grid=next((grid for grid in grids if grid is not None), None),
            class_names=names,
            preprocessing=config.get("preprocessing"),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise FileError(f"The file's {CONFIG} isn't the config of a model.") from error


def _description(source: str, *, model, grid, class_names, preprocessing) -> Description:
    sides = grid if isinstance(grid, list) else []
    names = class_names if isinstance(class_names, list) else [None]
    is_grid = len(sides) == 2 and all(isinstance(side, Integral) and side > 0 for side in sides)
    are_names = all(isinstance(name, str | Integral) for name in names)
    try:
        check(isinstance(model, str), "`model` must be a name.", model)
        check(grid is None or is_grid, "`grid` must be (rows, columns).", grid)
        check(class_names is None or are_names, "`class_names` must be names.", class_names)
        if preprocessing is not None:
            preprocessing = Preprocessing.of(preprocessing)
    except ValueError as error:
        raise FileError(f"The file's {source} can't be used: {error}") from error
    names = None if class_names is None else tuple(map(str, names))
    return Description(model, tuple(sides) or None, names, preprocessing)


def writer_of(directory: Path) -> str | None:
    """Return what wrote a directory, by its `config.json`: "keras_vitx", "Keras", "Transformers".

    None without that file. Waits while `save` replaces the directory.
    """
    config = directory / CONFIG
    for _ in range(ATTEMPTS):
        if config.is_file() or not is_being_moved(directory):
            break
        time.sleep(PAUSE)
    if not config.is_file():
        return None
    try:
        values = parse_json(config.read_bytes())
    except (OSError, ValueError, RecursionError):  # `open_directory` raises the error.
        return LIBRARY
    names = values if isinstance(values, dict) else {}
    if "class_name" in names:
        return "Keras"
    return "Transformers" if "model_type" in names and "library_name" not in names else LIBRARY


@contextlib.contextmanager
def open_directory(directory: Path) -> Iterator[tuple[dict[str, Any], str, Path]]:
    """Yield the model's config, the name of the weights file, and a path to the open file.

    If `save` replaces the directory while the two files are opened, both are opened again. Raises a
    ValueError if the config is damaged or was not written by `kv.save`, and an OSError if a file
    can't be read.
    """
    name = "its weights"
    with contextlib.ExitStack() as stack:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                content = _file(directory / CONFIG).read_bytes()
                config, name = read_config(content)
                file = stack.enter_context(_file(directory / name).open("rb"))
                before, after = os.fstat(file.fileno()), (directory / name).stat()
                if (directory / CONFIG).read_bytes() == content and os.path.samestat(before, after):
                    break
            time.sleep(PAUSE)
        else:
            files = sorted(path.name for path in directory.glob("*.keras"))
            hint = f" Its {files[0]} is a model." if files else ""
            raise FileNotFoundError(
                f"The directory {str(directory)!r} lacks {CONFIG} or {name}.{hint}"
            )
        # A descriptor's path outlives the file's; on Windows, an open file can't be removed.
        path = Path(f"/dev/fd/{file.fileno()}")
        yield config, name, path if path.exists() else directory / name


def _file(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError  # Opening a pipe would wait for ever.
    return path


def read_config(content: bytes) -> tuple[dict[str, Any], str]:
    """Read a `config.json`: the serialized model, and the name of the weights file beside it.

    Raises a ValueError if it is damaged, or was not written by `kv.save`.
    """
    try:
        values = parse_json(content)
        library, config, name = (values.get(key) for key in ("library_name", "model", "weights"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise FileError(f"{CONFIG} is damaged ({cause_of(error)}).") from error
    if library != LIBRARY:
        raise FileError(
            f"{CONFIG} doesn't describe a model of keras_vitx. If the weights belong to a size, "
            "use keras_vitx.create_model(NAME, weights=...)."
        )
    if name not in (SAFETENSORS, KERAS_WEIGHTS):
        raise FileError(f"{CONFIG} can't be used: it names the weights {name!r:.100}.")
    return config, name
