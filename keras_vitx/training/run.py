"""The folder of a training run: its lock, its settings and its results."""

import contextlib
import importlib.util
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import keras
from filelock import FileLock, Timeout

from keras_vitx import backend
from keras_vitx.data import Pipelines
from keras_vitx.files import atomic_write
from keras_vitx.training.callbacks import KeepBest
from keras_vitx.training.devices import in_use, is_chief
from keras_vitx.training.figures import draw_curves
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import checkpoints_in

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
HELD_OUT = "held_out.txt"


class Run(keras.callbacks.Callback):
    """The record of a training in its folder, which as a context it locks for other processes.

    `run.json` is written when the training begins and when it ends, also by an error, which leaves
    the model with its best weights. Without `output`, nothing is written.
    """

    best: KeepBest

    def __init__(self, output: str | os.PathLike | None, resume: bool = False, source: Any = None):
        super().__init__()
        self.source = path_of(source)
        self.folder = None if output is None else Path(output)
        self.checkpoints = self.folder and self.folder / CHECKPOINTS
        self.writes = self.folder is not None and is_chief()
        self.record: dict[str, Any] = {}
        self.begun: float | None = None
        if self.writes:
            self._check_folder(resume)

    def _check_folder(self, resume):
        files = ("run.json", "history.csv", "best.keras", "last.keras", CHECKPOINTS)
        found = {name for name in files if (self.folder / name).exists()}
        if found and not resume:
            raise ValueError(
                f"`output` already holds a training run, which is left unchanged: {self.folder}. "
                "Give another folder, or `resume=True` to continue the run."
            )
        if found - {"run.json"} and CHECKPOINTS not in found:
            raise ValueError(f"`output`: the run in {self.folder} has no checkpoints to continue.")

    def __enter__(self):
        self.keeps_memory = backend.keep_memory()
        if self.writes:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.folder / ".lock")
            try:
                self.lock.acquire(timeout=0)
            except Timeout as error:
                raise ValueError(
                    f"`output` must be a folder in which no other process trains. Received: "
                    f"{self.folder}, which is in use. Wait for that run, or give another folder."
                ) from error
        return self

    def describe(
        self, batches: Pipelines, model: keras.Model, recipe: Recipe, **record: Any
    ) -> None:
        """Set what `run.json` and `held_out.txt` say of the training."""
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
        self.begun = time.perf_counter()
        if self.writes:
            self.record["seconds"] = read_run(self.folder).get("seconds", 0.0)
            self._write()
            if self.held_out:
                with atomic_write(self.folder / HELD_OUT) as path:
                    path.write_text("".join(f"{name}\n" for name in self.held_out), "utf-8")

    def __exit__(self, kind, error, traceback):
        try:
            # A training that was refused before it began has touched nothing.
            if error is not None and self.begun is not None:
                self._stopped(error)
        finally:
            if self.writes:
                if self.begun is not None:
                    self._write_results()
                with contextlib.suppress(OSError):  # Windows removes no open file.
                    (self.folder / ".lock").unlink()
                self.lock.release()
            if self.keeps_memory:
                backend.return_memory()

    def _stopped(self, error):
        """Restore the best weights; say which they are, and how to go on."""
        kept = self.best.restore()
        self.record["stopped"] = f"{type(error).__name__}: {error}"
        files = checkpoints_in(self.checkpoints) if self.folder else []
        if files:
            kept += f" `resume=True` continues from {files[-1]}."
        if not isinstance(error, FloatingPointError):
            log.warning("%s stopped the training. %s", type(error).__name__, kept)
            return
        self.record["images"] = getattr(error, "images", [])
        look = "look at these images, and " if self.record["images"] else ""
        raise FloatingPointError(
            f"{error} {kept} Next, {look}try a lower `learning_rate`, `clip_norm=1.0`, or "
            "`precision='float32'`."
        ) from error

    def _write_results(self):
        """Write the results; a full disk is only logged, as not to hide another error."""
        seconds = self.record["seconds"] + time.perf_counter() - self.begun
        self.record |= {**self.best.summary(), "seconds": round(seconds, 1)}
        try:
            self._write()
            if self.best.rows and importlib.util.find_spec("matplotlib"):
                draw_curves(self.best.rows, self.folder / "curves.png")
        except OSError as error:
            log.warning("run.json and curves.png can't be written: %s", error)

    def _write(self):
        with atomic_write(self.folder / "run.json") as path:
            path.write_text(json.dumps(self.record, indent=2) + "\n")


def path_of(source: Any) -> str | None:
    """Return the absolute path of a source, a file or a folder; None for any other."""
    source = getattr(source, "name", source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else None


def read_run(folder: Path) -> dict[str, Any]:
    """Return what is in `run.json`; nothing if there is none."""
    path = folder / "run.json"
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}).") from error


def is_finished(folder: Path) -> bool:
    """Return whether the folder holds a run that was trained to its end."""
    return bool(read_run(folder).get("finished"))


def held_out(run: str | os.PathLike) -> list[str]:
    """Return the images that a run held out: file names relative to the source, or array indices.

    ```python
    kv.evaluate(model, "photos", validation_split=kv.training.held_out("runs/photos"))
    ```

    Args:
        run: The folder of the run.

    Raises:
        OSError: if the run has no list of them.
    """
    return (Path(run) / HELD_OUT).read_text("utf-8").splitlines()
