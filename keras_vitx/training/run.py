"""A training run: its directory, its lock and its record."""

import contextlib
import importlib.util
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
from filelock import FileLock, Timeout

from keras_vitx.data import Pipelines
from keras_vitx.drawing import drawing
from keras_vitx.files import atomic_write
from keras_vitx.training.callbacks import BestCheckpoint
from keras_vitx.training.devices import in_use, is_chief
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import checkpoints_in

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
HELD_OUT = "held_out.txt"
# Columns of a history that are not plotted.
NOT_PLOTTED = ("epoch", "seconds", "images_per_second")


class RunRecord(keras.callbacks.Callback):
    """The record of a training run in its directory, and a context that locks the directory.

    `run.json` is written when training begins and when it ends, also on an error, after which the
    model has its best weights. Without `output`, nothing is written.
    """

    best: BestCheckpoint

    def __init__(self, output: str | os.PathLike | None, resume: bool = False, source: Any = None):
        super().__init__()
        self.source = path_of(source)
        self.directory = None if output is None else Path(output)
        self.checkpoints = self.directory and self.directory / CHECKPOINTS
        self.writes = self.directory is not None and is_chief()
        self.record: dict[str, Any] = {}
        self.start: float | None = None
        if self.writes:
            self._check_directory(resume)

    def _check_directory(self, resume):
        files = ("run.json", "history.csv", "best.keras", "last.keras", CHECKPOINTS)
        existing = {name for name in files if (self.directory / name).exists()}
        if existing and not resume:
            raise ValueError(
                "`output` must be a directory without a run, which `resume=True` would continue. "
                f"Received: {self.directory}."
            )
        if existing - {"run.json"} and CHECKPOINTS not in existing:
            raise ValueError(
                "`output` must hold a run with checkpoints, or none, with `resume`. Received: "
                f"{self.directory}, a run without."
            )

    def __enter__(self):
        if self.writes:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.directory / ".lock")
            try:
                self.lock.acquire(timeout=0)
            except Timeout as error:
                raise ValueError(
                    "`output` must not be in use by another process. Received: "
                    f"{self.directory}. Wait for that run to end, or pass another directory."
                ) from error
        return self

    def describe(
        self, batches: Pipelines, model: keras.Model, recipe: Recipe, **record: Any
    ) -> None:
        """Set the contents of `run.json` and `held_out.txt`."""
        self.record = record | {
            "model": model.name,
            "source": self.source,
            "recipe": recipe.to_dict(),
            "devices": in_use().count,
            "backend": keras.backend.backend(),
            "keras": keras.__version__,
            "train_images": batches.train_size,
            "validation_images": batches.validation_size,
            "test_images": batches.test_size,
        }
        split = getattr(batches.validation, "split", None)
        self.held_out = [] if split is None else split.names()

    def on_train_begin(self, logs=None):
        self.start = time.perf_counter()
        if self.writes:
            self.record["seconds"] = read_run(self.directory).get("seconds", 0.0)
            self._write()
            if self.held_out:
                with atomic_write(self.directory / HELD_OUT) as path:
                    path.write_text("".join(f"{name}\n" for name in self.held_out), "utf-8")

    def __exit__(self, kind, error, traceback):
        try:
            # An error before training has changed nothing.
            if error is not None and self.start is not None:
                self._handle(error)
        finally:
            if self.writes:
                if self.start is not None:
                    self._write_results()
                with contextlib.suppress(OSError):  # Windows can't remove an open file.
                    (self.directory / ".lock").unlink()
                self.lock.release()

    def _handle(self, error):
        """Restore the best weights; log or raise which they are, and how to continue."""
        message = self.best.restore()
        self.record["stopped"] = f"{type(error).__name__}: {error}"
        files = checkpoints_in(self.checkpoints) if self.directory else []
        if files:
            message += f" `resume=True` continues from {files[-1]}."
        if not isinstance(error, FloatingPointError):
            log.warning("%s stopped the training. %s", type(error).__name__, message)
            return
        self.record["images"] = getattr(error, "images", [])
        images = "look at these images, and " if self.record["images"] else ""
        raise FloatingPointError(
            f"{error} {message} Next, {images}try a lower `learning_rate`, `clip_norm=1.0`, or "
            "`precision='float32'`."
        ) from error

    def _write_results(self):
        """Write the results; a full disk is only logged, so that it doesn't hide another error."""
        seconds = self.record["seconds"] + time.perf_counter() - self.start
        self.record |= {**self.best.summary(), "seconds": round(seconds, 1)}
        try:
            self._write()
            if self.best.rows and importlib.util.find_spec("matplotlib"):
                draw_curves(self.best.rows, self.directory / "curves.png")
        except OSError as error:
            log.warning("run.json and curves.png can't be written: %s", error)

    def _write(self):
        with atomic_write(self.directory / "run.json") as path:
            path.write_text(json.dumps(self.record, indent=2) + "\n")


def draw_curves(rows: Sequence[Mapping[str, float]], path: str | os.PathLike) -> None:
    """Plot the columns of a `history.csv` by epoch, each with its `val_` column."""
    columns = dict.fromkeys(key for row in rows for key in row)
    names = list(dict.fromkeys(c.removeprefix("val_") for c in columns if c not in NOT_PLOTTED))
    names.sort(key=lambda name: name == "learning_rate")
    with drawing(path, (1, len(names))) as (axes,):
        for axis, name in zip(axes, names, strict=True):
            for column, label in ((name, "training"), (f"val_{name}", "validation")):
                points = [(row["epoch"], row[column]) for row in rows if column in row]
                if points:
                    axis.plot(*zip(*points, strict=True), ".-", label=label)
            axis.set_title(name.replace("_", " "))
            axis.set_xlabel("epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
            if f"val_{name}" in columns:
                axis.legend()


def path_of(source: Any) -> str | None:
    """Return the absolute path of a source that is a file or a directory; None for others."""
    source = getattr(source, "name", source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else None


def name_of(source: Any) -> str | None:
    """Return the name of a source without the directories that it lies in; None for arrays."""
    source = getattr(source, "name", source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    return Path(source).name if path_of(source) else str(source)


def read_run(directory: Path) -> dict[str, Any]:
    """Return the contents of `run.json`, or an empty dictionary if there is no such file."""
    path = directory / "run.json"
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}).") from error


def held_out(run: str | os.PathLike) -> list[str]:
    """Return the images that a run held out: file names relative to the source, or array indices.

    ```python
    kv.evaluate(model, "photos", validation_split=kv.training.held_out("runs/photos"))
    ```

    Args:
        run: The directory of the run.

    Raises:
        OSError: if the run has no list of them.
    """
    return (Path(run) / HELD_OUT).read_text("utf-8").splitlines()
