"""Measures during training: a callback that writes them, and figures of its rows."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vitx.analysis.drawing import Picture, block_label, drawing
from keras_vitx.analysis.figures import shade
from keras_vitx.analysis.measure import measure
from keras_vitx.backend import restore_variables
from keras_vitx.files import atomic_write, local_path

COLUMNS = ("epoch", "step", "measure", "block", "head", "value")
DEFAULT = ("entropy", "nonlocality", "attention_branch", "mlp_branch")


class MeasureDuringTraining(keras.callbacks.Callback):
    """Measure fixed images before training and after each epoch, or every few steps.

    The file has one row per number, with the columns `epoch` (completed epochs, with fractions),
    `step`, `measure`, `block`, `head` (empty for measures without heads) and `value`. It is
    rewritten after each measurement. `plot_dynamics` draws the rows.

    Args:
        images: `(batch, height, width, channels)`, preprocessed for the model.
        path: Path of the `.csv` file; None writes no file.
        measures: Names of `MEASURES` with one number per block or per head.
        every: Number of steps between measurements; None measures after each epoch.
        batch_size: As in `measure`.
        log_dir: Directory for TensorBoard, with one curve per block, the mean over heads; None
            writes nothing.

    Attributes:
        rows: The rows, as dictionaries.

    Raises:
        ValueError: at the start of training, as in `measure`.
        OSError: if the file can't be written.
    """

    def __init__(
        self,
        images: ArrayLike,
        path: str | os.PathLike | None = None,
        measures: Iterable[str] = DEFAULT,
        every: int | None = None,
        batch_size: int = 32,
        log_dir: str | os.PathLike | None = None,
    ):
        super().__init__()
        self.measures = [measures] if isinstance(measures, str) else list(measures)
        self.images, self.every, self.batch_size = images, every, batch_size
        self.path = None if path is None else local_path(path)
        self.writer = None
        if log_dir is not None:
            from tensorboard.summary import Writer

            self.writer = Writer(str(log_dir))
        self.rows: list[dict[str, Any]] = []
        self.step = self.epoch = 0

    def on_train_begin(self, logs=None):
        if not self.rows:
            self.record(0)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.every and self.step % self.every == 0:
            restore_variables(self.model)
            steps = self.params.get("steps")
            self.record(self.epoch + ((batch + 1) / steps if steps else 0))

    def on_epoch_end(self, epoch, logs=None):
        if not self.every:
            self.record(epoch + 1)

    def on_train_end(self, logs=None):
        if self.writer is not None:
            self.writer.flush()

    def record(self, epoch: float) -> None:
        """Measure the model now, and add the rows."""
        results = measure(self.model, self.images, self.measures, self.batch_size)
        for name, blocks in results.items():
            for block, values in blocks.items():
                for head, value in enumerate(np.atleast_1d(values)):
                    head = head if np.ndim(values) else ""
                    row = (round(epoch, 6), self.step, name, block, head, float(value))
                    self.rows.append(dict(zip(COLUMNS, row, strict=True)))
                if self.writer is not None:
                    self.writer.add_scalar(f"{name}/{block}", float(np.mean(values)), self.step)
        if self.path is not None:
            with atomic_write(self.path) as temporary, temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows)

    def get_state(self) -> dict[str, Any]:
        """Return the rows, for a checkpoint of `keras_vitx.training.Restart`."""
        return {"step": self.step, "rows": self.rows}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`."""
        self.step, self.rows = state["step"], state["rows"]


def read_dynamics(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Read the file of a `MeasureDuringTraining`.

    Args:
        path: Path of the `.csv` file.
    """
    with local_path(path).open(newline="") as file:
        reader = csv.DictReader(file)
        types = {"epoch": float, "step": int, "value": float}
        rows = [row | {name: type_(row[name]) for name, type_ in types.items()} for row in reader]
    return [row | {"head": int(row["head"]) if row["head"] else ""} for row in rows]


def plot_dynamics(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike,
    measures: str | Sequence[str] = (),
    heads: bool = False,
) -> Picture:
    r"""Plot measures during training: one panel per measure, one curve per block.

    ConViT, Figures 5, 10 and 13 (`"nonlocality"`), and with `heads=True` Figures 6 and 14
    (`"gates"`, $\sigma(\lambda_h)$). Measures with heads are averaged over them; deeper blocks have
    lighter curves.

    Args:
        rows: The rows of a `MeasureDuringTraining`, or of its file (`read_dynamics`).
        path: Path of the file.
        measures: Names of the measures; by default all of the rows.
        heads: Whether to draw one panel per block instead, with one curve per head and their
            mean in black.
    """
    by_measure = _group(rows, "measure")
    panels = {}
    for name in [measures] if isinstance(measures, str) else measures or by_measure:
        title = name.replace("_", " ")
        if heads:
            by_block = _group(by_measure[name], "block")
            panels |= {f"{title}\n{block_label(name)}": x for name, x in by_block.items()}
        else:
            panels[title] = by_measure[name]
    with drawing(path, (1, len(panels)), (2, 2.6) if heads else (4, 3)) as (axes,):
        for axis, (title, panel) in zip(axes, panels.items(), strict=True):
            curves = _group(panel, "head" if heads else "block")
            for index, (label, curve) in enumerate(curves.items()):
                text = f"head {label}" if heads else block_label(label)
                _plot_means(axis, curve, color=shade(index, len(curves)), label=text)
            if heads:
                _plot_means(axis, panel, color="black", linewidth=2, label="mean")
            axis.set_title(title, fontsize=9)
            axis.set_xlabel("epoch")
        axes[-1].legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    return Picture(path).expanduser()


def _group(rows, column):
    """Return the rows by their value of a column, in order."""
    groups = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _plot_means(axis, rows, **style):
    """Draw the mean of all values of each epoch."""
    epochs = _group(rows, "epoch")
    means = [np.mean([row["value"] for row in group]) for group in epochs.values()]
    axis.plot(list(epochs), means, ".-", **style)
