"""Writing a model under the backend of a format, and running the file in a second process.

`python -m keras_vitx.export.process DIRECTORY PATH` writes the model in DIRECTORY to PATH and runs
it.
"""

import importlib
import json
import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vitx.checks import check
from keras_vitx.export import runtimes
from keras_vitx.export.formats import FORMATS, Format
from keras_vitx.layers.base import classes_in

MODEL, REQUEST = "model.keras", "request.json"
INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"


def write(
    model: keras.Model,
    names: Sequence[str],
    format: Format,
    path: Path,
    batches: Sequence[np.ndarray],
) -> list[list[np.ndarray]]:
    """Write a model with these names of outputs; return the file's outputs for each batch."""
    if keras.backend.backend() == format.backend:
        format.write(model, names, path)
        batches_of_outputs = run_file(path, format, batches)
    else:
        with tempfile.TemporaryDirectory() as directory:
            directory = Path(directory)
            request = {"format": format.name, "names": names, "custom": custom_objects(model)}
            (directory / REQUEST).write_text(json.dumps(request))
            model.save(directory / MODEL)
            np.savez(directory / INPUTS, *batches)
            run_python("-m", "keras_vitx.export.process", directory, path, backend=format.backend)
            batches_of_outputs = _read(directory / OUTPUTS)
    return [[outputs[name] for name in names] for outputs in batches_of_outputs]


def run_file(
    path: Path, format: Format, batches: Sequence[np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """Run a file without Keras; return its outputs by name, for each batch."""
    with tempfile.TemporaryDirectory() as directory:
        inputs, outputs = Path(directory, INPUTS), Path(directory, OUTPUTS)
        np.savez(inputs, *batches)
        run_python(runtimes.__file__, format.name, path, inputs, outputs, backend=format.backend)
        return _read(outputs)


def _read(path):
    """Return the outputs of each batch, which `runtimes.main` wrote as `arr_<batch>.<name>`."""
    rows: dict[int, dict[str, np.ndarray]] = {}
    with np.load(path) as arrays:
        for key, array in arrays.items():
            batch, _, name = key.partition(".")
            rows.setdefault(int(batch.removeprefix("arr_")), {})[name] = array
    return [rows[batch] for batch in sorted(rows)]


def custom_objects(model: keras.Model) -> dict[str, tuple[str, str]]:
    """Return the modules and names of a model's custom classes and functions, by registered name.

    They are those of its layers, and registered ones that its config names.
    """
    config = model.to_json()
    registered = keras.saving.get_custom_objects().items()
    custom = {name: thing for name, thing in registered if f'"{name}"' in config}
    custom |= classes_in(model)
    places = {
        name: (thing.__module__, thing.__qualname__)
        for name, thing in custom.items()
        if thing.__module__.partition(".")[0] not in ("keras", "keras_vitx")
    }
    rule = (
        "`model` must use classes and functions that a module defines, which a second process "
        "imports: not a script, a session or a function."
    )
    for module, name in places.values():
        check(module != "__main__" and "<locals>" not in name, rule, name)
    return places


def run_python(*arguments: str | os.PathLike, backend: str) -> None:
    """Run Python in a second process on the CPU, with Keras on `backend`; raise its error."""
    environment = {
        **os.environ,
        # In a notebook, "" stands for the current directory.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "KERAS_BACKEND": backend,
        # This process may hold the memory of the accelerator.
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        error = ChildProcessError(f"The second process ({backend}) failed: {reason:.300}")
        error.add_note(done.stderr)
        raise error


def main(directory: str, path: str) -> None:
    """Write the model in a directory to `path`, and run the file."""
    directory = Path(directory)
    request = json.loads((directory / REQUEST).read_text())
    custom = {
        registered: operator.attrgetter(name)(importlib.import_module(module))
        for registered, (module, name) in request["custom"].items()
    }
    model = keras.saving.load_model(
        directory / MODEL, custom_objects=custom, compile=False, safe_mode=False
    )
    FORMATS[request["format"]].write(model, request["names"], Path(path))
    runtimes.main(request["format"], path, directory / INPUTS, directory / OUTPUTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
