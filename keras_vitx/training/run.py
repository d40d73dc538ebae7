"""The folder of a training run."""

import json
import os
from pathlib import Path
from typing import Any

from keras_vitx.files import written_whole

FILES = ("run.json", "history.csv", "best.keras", "last.keras")


def new_folder(output: str | os.PathLike) -> Path:
    """Create the folder of a new run.

    Raises:
        ValueError: if `output` already holds a run.
    """
    output = Path(output)
    if any((output / file).exists() for file in FILES):
        raise ValueError(
            f"`output` already holds a training run, which is left unchanged: {output}. "
            "Give another folder."
        )
    output.mkdir(parents=True, exist_ok=True)
    return output


def write_run(output: Path, facts: dict[str, Any]) -> None:
    """Write `run.json`: the settings and results of a run."""
    with written_whole(output / "run.json") as path:
        path.write_text(json.dumps(facts, indent=2) + "\n")
