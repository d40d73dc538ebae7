"""Files of the state of a training: written whole, checked, the last few kept."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_vitx.files import written_whole

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"


class Checkpoints:
    """A folder with one file per saved step, of which the last ones are kept.

    A state is a dictionary of JSON values and NumPy arrays, nested as needed. Its file
    is safetensors: the arrays, and the rest as JSON in the metadata.

    Args:
        folder: The folder; created when the first state is written.
        keep: Number of files to keep, at least 1.

    Raises:
        ValueError: if `keep` is below 1.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3):
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1. Received: {keep}.")
        self.folder, self.keep = Path(folder), keep

    @property
    def files(self) -> list[Path]:
        """The files, oldest first."""
        return sorted(self.folder.glob(f"step-*{SUFFIX}"))

    def write(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state after `step` steps, then remove files beyond the last `keep`.

        Older files are not touched before the new one is complete.

        Raises:
            OSError: if the disk is full or the folder is not writable; the message names
                the last good checkpoint.
        """
        path = self.folder / f"step-{step:09d}{SUFFIX}"
        arrays: dict[str, np.ndarray] = {}
        facts = json.dumps(_without_arrays(state, "", arrays))
        needed = sum(array.nbytes for array in arrays.values()) + len(facts)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            if free < needed:
                text = f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, {free:,} free"
                raise OSError(errno.ENOSPC, text)
            with written_whole(path) as unfinished:
                save_file(arrays, unfinished, {"state": facts})
                # safetensors creates files that only their owner can read.
                unfinished.chmod(0o644)
                # On the disk before the rename, or a power cut could leave an empty file.
                with unfinished.open("rb") as file:
                    os.fsync(file.fileno())
        except (OSError, SafetensorError) as error:
            good = self.files
            raise OSError(
                getattr(error, "errno", None) or errno.EIO,
                f"The checkpoint of step {step} can't be written to {self.folder}: "
                f"{getattr(error, 'strerror', None) or error}. "
                + (f"The last good one is {good[-1]}." if good else "There is no earlier one."),
            ) from error
        for old in self.files[: -self.keep]:
            old.unlink()
        return path

    def read(self) -> dict[str, Any] | None:
        """Return the last state, or None if there is none.

        A file that can't be read is skipped, and a warning is logged.

        Raises:
            OSError: if there are files, but none of them can be read.
        """
        files = self.files
        for path in reversed(files):
            try:
                return read_state(path)
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                log.warning("%s can't be read (%s); the one before it is used.", path, error)
        if files:
            raise OSError(f"No checkpoint in {self.folder} can be read.")
        return None

    def remove_unfinished(self) -> None:
        """Remove what a killed process left half written, here and in the parent folder."""
        for folder in (self.folder, self.folder.parent):
            for path in folder.glob(".unfinished-*"):
                shutil.rmtree(path, ignore_errors=True)


def read_state(path: str | os.PathLike) -> dict[str, Any]:
    """Return the state in a file of `Checkpoints.write`."""
    with safe_open(path, "numpy") as file:
        facts = json.loads(file.metadata()["state"])
        return _with_arrays(facts, file.get_tensor)


def _without_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` with each array replaced by its name, and add the array to `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value)
        # `ascontiguousarray` gives a scalar one axis.
        arrays[name] = arrays[name].reshape(value.shape)
        return {"array": name}
    if isinstance(value, Mapping):
        return {key: _without_arrays(v, f"{name}.{key}", arrays) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def _with_arrays(value: Any, array: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"array"}:
            return array(value["array"])
        return {key: _with_arrays(v, array) for key, v in value.items()}
    if isinstance(value, list):
        return [_with_arrays(v, array) for v in value]
    return value
