"""Continue a run from its folder, which holds the command that began it."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vitx.files import written_whole

COMMAND = "command.json"
# Options of a command that may differ when it is continued.
FREE = ("resume", "output", "save_every", "keep", "backend")


def _choose_backend(folder: Path | None) -> Path | None:
    if folder is not None:
        # The option --backend goes before it.
        os.environ.setdefault("KERAS_BACKEND", command_of(folder)["backend"])
    return folder


Resume = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a run that was stopped, to be continued with its own settings, bit for "
        "bit on the same backend.",
        # Before --backend, and before Keras is imported.
        is_eager=True,
        callback=_choose_backend,
    ),
]
SaveEvery = Annotated[
    int | None,
    typer.Option(help="Steps between two checkpoints. Default: one per epoch.", min=1),
]
Keep = Annotated[int, typer.Option(help="Number of checkpoints to keep.", min=1)]


def command_of(folder: Path) -> dict[str, Any]:
    """Return the options of the command that began a run.

    Raises:
        ValueError: if `folder` holds no run of the command line.
    """
    path = folder / COMMAND
    if not path.is_file():
        raise ValueError(f"`--resume`: {folder} is not the folder of a run: it has no {COMMAND}.")
    return json.loads(path.read_text())


def recorder(context: typer.Context, folder: Path) -> Any:
    """Return a callback that writes the options of a command to the folder of its run."""
    import keras

    options = {**context.params, "backend": keras.backend.backend()}
    for name in ("model", "source"):
        options[name] = _in_any_folder(options[name])
    text = json.dumps(options, indent=2, default=str) + "\n"

    def write(logs):
        with written_whole(folder / COMMAND) as path:
            path.write_text(text)

    return keras.callbacks.LambdaCallback(on_train_begin=write)


def resumed(context: typer.Context, folder: Path) -> dict[str, Any]:
    """Return the options of the run in `folder`, with those that may differ as given now.

    Raises:
        ValueError: if an option is given that differs from the run's; the message says
            in what.
    """
    before = command_of(folder)
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name).name == "COMMANDLINE" and name not in FREE
    }
    given |= {name: _in_any_folder(given[name]) for name in ("model", "source") if name in given}
    differ = [
        f"{name} was {before.get(name)!r}, is now {value!r}"
        for name, value in json.loads(json.dumps(given, default=str)).items()
        if value != before.get(name)
    ]
    if differ:
        raise ValueError(
            f"`--resume` continues the run in {folder} as it was begun: {'; '.join(differ)}."
        )
    return {**before, "resume": folder} | {
        name: context.params[name]
        for name in ("save_every", "keep", "backend")
        if context.get_parameter_source(name).name == "COMMANDLINE"
    }


def _in_any_folder(name: str) -> str:
    """Return a model or a source with the whole path, if it is a path."""
    return str(Path(name).absolute()) if Path(name).exists() else name
