"""Writing a model in a format, and running what was written: at most one second process.

Run as `python -m keras_vitx.export.convert REQUEST.json PATH` to write the model beside
REQUEST.json under the backend of its format, and to run the file there.
"""

import importlib
import json
import operator
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx.export import runtimes
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.formats.base import Format, Graph, in_arithmetic

INPUTS, OUTPUTS, CALIBRATION = "inputs.npz", "outputs.npz", "calibration.npy"
KNOWN = {"keras", "keras_vitx", "builtins"}
"""Packages whose classes and functions every process can find."""

Outputs = Mapping[str, np.ndarray]
"""Outputs by `<batch>.<name>`, and `metadata`."""


def convert(
    graph: Graph,
    format: Format,
    path: Path,
    imports: Sequence[str] = (),
    batches: Mapping[str, np.ndarray] | None = None,
) -> Outputs | None:
    """Write a graph under the format's backend, and run the file on batches of images.

    Args:
        graph: The model.
        format: The format.
        path: The file to write, in a folder of its own, for temporary files, too.
        imports: Modules that a second process imports first.
        batches: Images by name; None does not run the file.

    Returns:
        The outputs of `run_file`, or None.

    Raises:
        ValueError: if a second process could not find a custom class.
        OSError: if the second process fails (`ChildProcessError`).
    """
    if keras.backend.backend() == format.backend:
        with in_arithmetic(graph, format):
            format.write(graph, path)
        return None if batches is None else run_file(path, format, batches)
    request = {
        "format": format.name,
        "imports": list(imports),
        "custom": custom_objects(graph.model, imports),
        "models": list(graph.models),
        "graph": {
            name: getattr(graph, name)
            for name in ("outputs", "precision", "compute_dtype", "classes", "top")
        },
    }
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        folder = Path(folder)
        (folder / "request.json").write_text(json.dumps(request))
        for name, model in graph.models.items():
            model.save(folder / f"{name}.keras")
        if graph.calibration is not None:
            np.save(folder / CALIBRATION, graph.calibration)
        if batches is not None:
            np.savez(folder / INPUTS, **batches)
        module = "keras_vitx.export.convert"
        run_python("-m", module, folder / "request.json", path, backend=format.backend)
        return None if batches is None else dict(np.load(folder / OUTPUTS))


def run_file(path: Path, format: Format, batches: Mapping[str, np.ndarray]) -> Outputs:
    """Run a file in its own runtime, in a process without Keras.

    Args:
        path: The file.
        format: Its format.
        batches: Images by name. The latency is measured on the first image.

    Returns:
        The outputs, as arrays by `<batch>.<name>`, and `metadata`, the latency and the versions
        as JSON.

    Raises:
        ChildProcessError: if the runtime fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, INPUTS), Path(folder, OUTPUTS)
        np.savez(inputs, **batches)
        run_python(runtimes.__file__, format.name, path, inputs, outputs, backend=format.backend)
        return dict(np.load(outputs))


def custom_objects(model: keras.Model, imports: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the modules and names of the custom classes and functions of a model, by their key.

    Only of those that exist in this process: what else the config of a file names is not imported.

    Raises:
        ValueError: if one was defined in a script, a notebook, an interactive session or
            inside a function, and `imports` is empty.
    """
    objects = {}
    for key, found in _custom(keras.saving.serialize_keras_object(model)):
        module, name = found.__module__, found.__qualname__
        if module != "__main__" and "<locals>" not in name:
            objects[key] = [module, name]
        elif not imports:
            where = "a script or a session" if module == "__main__" else "a function"
            raise ValueError(
                f"`model` must use classes and functions that a module defines. Received: "
                f"{name!r}, defined in {where}, where the second process can't find it. Move it to "
                "the top level of a module and import it from there, or pass "
                'imports=("my_module",), the module that registers it.'
            )
    return objects


def _custom(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions of a config that are neither Keras's nor this package's."""
    if isinstance(config, (list, tuple)):
        for value in config:
            yield from _custom(value)
    if not isinstance(config, dict):
        return
    key = config.get("registered_name") or config.get("class_name")
    if config.get("class_name") == "function":
        key = config.get("config")
    if isinstance(key, str):
        module = sys.modules.get(str(config.get("module")))
        found = keras.saving.get_registered_object(key)
        found = found or getattr(module, key.rpartition(">")[2], None)
        if getattr(found, "__module__", "builtins").partition(".")[0] not in KNOWN:
            yield key, found
    for name, value in config.items():
        if name != "compile_config":  # Not needed for an export.
            yield from _custom(value)


def run_python(*arguments: str | os.PathLike, backend: str) -> None:
    """Run Python with `arguments` in a new process and wait for it.

    The process inherits `sys.path`. In it Keras runs on `backend`, on the CPU, since the
    current process may hold the memory of the accelerator. Its standard input ends with this
    process.

    Raises:
        ChildProcessError: if it fails, with the last line of its standard error. The full
            standard error is attached as a note.
    """
    environment = {
        **os.environ,
        # "" means the current folder, e.g. in a notebook.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    # Its standard input stays open until all of its standard error is read.
    with subprocess.Popen(
        [sys.executable, "-P", *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        written = process.stderr.read().strip()
    if process.returncode:
        reason = written.splitlines()[-1] if written else f"exit status {process.returncode}"
        # Some messages of Keras end with a whole config.
        reason = textwrap.shorten(reason, 300, placeholder=" ...")
        error = ChildProcessError(f"The second process ({backend}) failed: {reason}")
        error.add_note(written)
        raise error


def main(request_file: str, path: str) -> None:
    """Write the model that a request describes to `path`, and run it if there are inputs."""
    folder = Path(request_file).parent
    request = json.loads(Path(request_file).read_text())
    for module in (*request["imports"], *(module for module, _ in request["custom"].values())):
        importlib.import_module(module)
    custom = {
        key: keras.saving.get_registered_object(key)
        or operator.attrgetter(name)(sys.modules[module])
        for key, (module, name) in request["custom"].items()
    }

    # Not compiled, since an export does not need the compile config.
    models = {
        name: keras.saving.load_model(folder / f"{name}.keras", custom, compile=False)
        for name in request["models"]
    }
    calibration, format = folder / CALIBRATION, FORMATS[request["format"]]
    images = np.load(calibration) if calibration.exists() else None
    graph = Graph(models, calibration=images, **request["graph"])
    convert(graph, format, Path(path))
    if (folder / INPUTS).exists():
        runtimes.main(format.name, path, folder / INPUTS, folder / OUTPUTS)


if __name__ == "__main__":
    # The folder of the temporary file, which has that of the request inside.
    runtimes.end_with_parent(Path(sys.argv[1]).parent.parent)
    main(*sys.argv[1:])
