"""Folders written by `kv.save`: a config and a weights file, read as one version."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_vitx.weights.description import CONFIG, LIBRARY, Refused

SAFETENSORS = "model.safetensors"
# Keras's own format, for variables that have no name in PyTorch checkpoints.
KERAS_WEIGHTS = "model.weights.h5"

ATTEMPTS = 50
PAUSE = 0.01  # seconds between them


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[tuple[dict[str, Any], str, Path]]:
    """Yield the model's config, the name of the weights file, and a path to the opened file.

    `save` replaces a folder in one step; if that happens between the opening of the two files, both
    are opened again. Raises a ValueError if the config is damaged or was not written by `kv.save`,
    and an OSError if a file can't be read.
    """
    with contextlib.ExitStack() as stack:
        for attempt in range(ATTEMPTS):
            try:
                content = (folder / CONFIG).read_bytes()
                config, name = _parse(content)
                file = stack.enter_context((folder / name).open("rb"))
                opened, now = os.fstat(file.fileno()), (folder / name).stat()
                if (folder / CONFIG).read_bytes() == content and os.path.samestat(opened, now):
                    break
            except FileNotFoundError as error:
                missing = Path(error.filename).name
                if folder.is_dir() and attempt > ATTEMPTS // 5:
                    raise FileNotFoundError(
                        f"There is no {missing} in the folder {str(folder)!r}."
                    ) from error
            time.sleep(PAUSE)
        else:
            raise OSError(f"The folder {str(folder)!r} changes too often to be read.")
        # A descriptor's path works even if the file is removed; on Windows, it can't be removed.
        path = Path(f"/dev/fd/{file.fileno()}")
        yield config, name, path if path.exists() else folder / name


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Read a `config.json`: the serialized model, and the name of the weights file beside it.

    Raises a ValueError if it is damaged, or was not written by `kv.save`.
    """
    return _parse(path.read_bytes())


def _parse(content: bytes) -> tuple[dict[str, Any], str]:
    try:
        read = json.loads(content.decode("utf-8"))
        ours = read.get("library_name") == LIBRARY
        config, weights = (read["model"], read["weights"]) if ours else (None, None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"{CONFIG} is damaged ({type(error).__name__}).") from error
    if not ours:
        raise Refused(
            f"{CONFIG} doesn't describe a model of keras_vitx. If the weights are those of a size, "
            "use keras_vitx.create_model(NAME, weights=...)."
        )
    if weights not in (SAFETENSORS, KERAS_WEIGHTS):
        raise Refused(f"{CONFIG} can't be used: it names the weights {weights!r:.100}.")
    return config, weights
