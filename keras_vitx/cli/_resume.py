"""Continue a run from its folder, which holds the command that began it."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vitx.files import atomic_write

COMMAND = "command.json"
# Options of a command that may differ when it is continued.
FREE = ("resume", "output", "save_every", "keep", "backend", "epochs")


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
        begun = (folder / "run.json").is_file()
        raise ValueError(
            f"`--resume`: {folder} holds a run that was begun in Python: continue it by the same "
            "call of `kv.fit` with `resume=True`."
            if begun
            else f"`--resume`: {folder} is not the folder of a run: it has no {COMMAND}."
        )
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}).") from error


def recorder(context: typer.Context, folder: Path) -> Any:
    """Return a callback that writes the options of a command to the folder of its run."""
    import keras

    options = {**context.params, "backend": keras.backend.backend()}
    for name in ("model", "source"):
        options[name] = _in_any_folder(options[name])
    text = json.dumps(options, indent=2, default=str) + "\n"

    def write(logs):
        with atomic_write(folder / COMMAND) as path:
            path.write_text(text)

    return keras.callbacks.LambdaCallback(on_train_begin=write)


def resumed(context: typer.Context, folder: Path) -> dict[str, Any]:
    """Return the options of the run in `folder`, with those that may differ as given now.

    Raises:
        ValueError: if an option is given that differs from the run's; the message says
            in what.
    """
    before = command_of(folder)
    now = given(context)
    fixed = {name: value for name, value in now.items() if name not in FREE}
    fixed |= {name: _in_any_folder(fixed[name]) for name in ("model", "source") if name in fixed}
    differ = [
        f"{name} was {before.get(name)!r}, is now {value!r}"
        for name, value in json.loads(json.dumps(fixed, default=str)).items()
        if value != before.get(name)
    ]
    if differ:
        raise ValueError(
            f"`--resume` continues the run in {folder} as it was begun: {'; '.join(differ)}."
        )
    free = ("epochs", "save_every", "keep", "backend")
    return {**before, "resume": folder} | {name: now[name] for name in free if name in now}


def extend(folder: Path, epochs: int | None) -> None:
    """Write the number of epochs of a run that was continued beyond its end."""
    options = command_of(folder)
    if options["epochs"] != epochs:
        with atomic_write(folder / COMMAND) as path:
            path.write_text(json.dumps({**options, "epochs": epochs}, indent=2) + "\n")


def given(context: typer.Context) -> dict[str, Any]:
    """Return the options that were given on the command line, by name."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name).name == "COMMANDLINE"
    }


def _in_any_folder(name: str) -> str:
    """Return a model or a source with the whole path, if it is a path."""
    return str(Path(name).absolute()) if Path(name).exists() else name
