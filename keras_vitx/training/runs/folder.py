"""The folder of a training run."""

import importlib.util
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vitx.files import written_whole
from keras_vitx.training.runs.curves import draw_curves

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
FILES = ("run.json", "history.csv", "best.keras", "last.keras", CHECKPOINTS)


def run_folder(output: str | os.PathLike, resume: bool = False) -> Path:
    """Create the folder of a run.

    Args:
        output: The folder.
        resume: Whether it may hold a run, which will be continued.

    Raises:
        ValueError: if `output` holds a run without `resume`, or with it one without
            checkpoints.
    """
    output = Path(output)
    found = [file for file in FILES if (output / file).exists()]
    if found and not resume:
        raise ValueError(
            f"`output` already holds a training run, which is left unchanged: {output}. "
            "Give another folder, or `resume=True` to continue the run."
        )
    if set(found) - {"run.json"} and CHECKPOINTS not in found:
        raise ValueError(f"`output`: the run in {output} has no checkpoints to continue from.")
    output.mkdir(parents=True, exist_ok=True)
    return output


def read_run(output: Path) -> dict[str, Any]:
    """Return what is in `run.json`; nothing if there is none."""
    path = output / "run.json"
    return json.loads(path.read_text()) if path.exists() else {}


def is_finished(output: Path) -> bool:
    """Return whether the folder holds a run that was trained to its end."""
    return bool(read_run(output).get("finished"))


def report_start(output: Path, state: Mapping[str, Any] | None, epochs: int) -> None:
    """Log from where the training of a run continues, if it does."""
    if state is None:
        return
    if state["epoch"] >= epochs:
        log.info("The run in %s is finished; its result is loaded.", output)
    else:
        log.info(
            "The run in %s continues with step %d of epoch %d.",
            output,
            state["step"] + 1,
            state["epoch"] + 1,
        )


def write_run(output: Path, facts: dict[str, Any]) -> None:
    """Write `run.json`: the settings and results of a run."""
    with written_whole(output / "run.json") as path:
        path.write_text(json.dumps(facts, indent=2) + "\n")


def write_results(
    output: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
) -> None:
    """Write `run.json` and, with matplotlib, `curves.png`; a full disk is only logged.

    It is called after an error as well, which should not be lost behind another one.
    """
    try:
        write_run(output, facts)
        if rows and importlib.util.find_spec("matplotlib"):
            draw_curves(rows, output / "curves.png")
    except OSError as error:
        log.warning("run.json and curves.png can't be written: %s", error)
