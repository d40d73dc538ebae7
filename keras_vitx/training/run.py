"""The files of a training run in its directory."""

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras

from keras_vitx.checks import check
from keras_vitx.data import Dataset
from keras_vitx.files import atomic_write, local_path, read_record
from keras_vitx.training.devices import in_use, is_chief
from keras_vitx.training.source import TrainingData

RECORD, HISTORY, RESTART = "run.json", "history.csv", "restart.safetensors"


def new_run(output: str | os.PathLike, resume: bool = False) -> Path:
    """Return the directory of a run; a ValueError if it holds one and `resume` is false."""
    output = local_path(output)
    # Another process may come when the chief has begun to write.
    is_new = resume or not any((output / name).exists() for name in (RECORD, RESTART))
    rule = "`output` must be a directory without a run, which `resume=True` would continue."
    check(is_new or not is_chief(), rule, str(output))
    output.mkdir(parents=True, exist_ok=True)
    return output


def record_of(
    model: keras.Model, source: Any, data: TrainingData, teacher: keras.Model | None, seed: int
) -> dict[str, Any]:
    """Return what a person needs to repeat a run."""
    name = source.name if isinstance(source, Dataset) else source
    if not isinstance(name, (str, os.PathLike)):
        name = type(name).__name__
    is_path = Path(name).expanduser().exists()
    return {
        "model": model.name,
        "source": str(Path(name).expanduser().resolve()) if is_path else str(name),
        "recipe": data.recipe.to_dict(),
        "teacher": teacher and teacher.name,
        "seed": seed,
        "devices": in_use().count,
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "keras_vitx": version("keras_vitx"),
        "held_out": data.held_out,
    }


def write_run(output: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a run, whole or not at all, in the chief process."""
    if is_chief():
        # JSON has no NaN.
        record = json.loads(json.dumps(record), parse_constant=lambda name: None)
        with atomic_write(output / RECORD) as path:
            path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", "utf-8")


def history_logger(output: Path, epochs: int) -> list[keras.callbacks.CSVLogger]:
    """Return Keras's logger of a run, in the chief process, after the rows of the first `epochs`.

    A run that was killed may have logged an epoch that it starts again with.
    """
    if not is_chief():
        return []
    path = output / HISTORY
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)[: 1 + epochs]
        with atomic_write(path) as temporary:
            temporary.write_text("".join(lines))
    return [keras.callbacks.CSVLogger(path, append=epochs > 0)]


def held_out(run: str | os.PathLike) -> list[str]:
    """Return the images that a run held out: file names relative to the source, or array indices.

    ```python
    source = kv.data.load_dataset("photos", validation_split=kv.training.held_out("runs/photos"))
    kv.evaluate(model, source, "validation")
    ```

    Args:
        run: The directory of the run.

    Raises:
        OSError: if it is none.
    """
    return read_record(run)["held_out"]
