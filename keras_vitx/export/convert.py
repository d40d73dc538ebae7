"""Writing a graph under the backend of its format, and running the file: one second process.

Run as `python -m keras_vitx.export.convert FOLDER PATH` to write to PATH what FOLDER holds.
"""

import importlib
import json
import operator
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vitx.export import runtimes
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.formats.base import Format, Graph, in_arithmetic

REQUEST, CALIBRATION = "request.json", "calibration.npy"
INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"
KNOWN = {"keras", "keras_vitx", "builtins"}
"""Packages whose classes and functions every process can find."""


def convert(
    graph: Graph,
    format: Format,
    path: Path,
    imports: Sequence[str] = (),
    batches: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a graph under the format's backend; return the file's outputs for `batches`, if any."""
    if keras.backend.backend() == format.backend:
        with in_arithmetic(graph, format):
            format.write(graph, path)
        return {} if batches is None else run_file(path, format, batches)
    names = ("outputs", "precision", "compute_dtype", "classes", "top")
    request = {
        "format": format.name,
        "imports": list(imports),
        "custom": custom_objects(graph.model, imports),
        "graph": {name: getattr(graph, name) for name in names},
    }
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        folder = Path(folder)
        (folder / REQUEST).write_text(json.dumps(request))
        for name, model in graph.models.items():
            model.save(folder / f"{name}.keras")
        if graph.calibration is not None:
            np.save(folder / CALIBRATION, graph.calibration)
        if batches is not None:
            np.savez(folder / INPUTS, **batches)
        run_python("-m", "keras_vitx.export.convert", folder, path, backend=format.backend)
        return {} if batches is None else dict(np.load(folder / OUTPUTS))


def run_file(
    path: Path, format: Format, batches: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run a file without Keras; return outputs by `<batch>.<name>`, `latency_ms` and `version`."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, INPUTS), Path(folder, OUTPUTS)
        np.savez(inputs, **batches)
        run_python(runtimes.__file__, format.name, path, inputs, outputs, backend=format.backend)
        return dict(np.load(outputs))


def custom_objects(model: keras.Model, imports: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the modules and names of the custom classes and functions of a model, by their key.

    Only of those that exist in this process: what else a config names is not imported.
    """
    objects, configs = {}, [keras.saving.serialize_keras_object(model)]
    while configs:
        config = configs.pop()
        if isinstance(config, (list, tuple)):
            configs += config
        if not isinstance(config, dict):
            continue
        # An export does not need the compile config.
        configs += [value for name, value in config.items() if name != "compile_config"]
        key = config.get("registered_name") or config.get("class_name")
        if config.get("class_name") == "function":
            key = config.get("config")
        if not isinstance(key, str):
            continue
        found = keras.saving.get_registered_object(key)
        if found is None:
            defining = sys.modules.get(str(config.get("module")))
            found = getattr(defining, key.rpartition(">")[2], None)
        module = getattr(found, "__module__", "builtins")
        if module.partition(".")[0] in KNOWN:
            continue
        if module != "__main__" and "<locals>" not in found.__qualname__:
            objects[key] = [module, found.__qualname__]
        elif not imports:
            where = "a script or a session" if module == "__main__" else "a function"
            raise ValueError(
                f"`model` must use classes and functions that a module defines. Received: "
                f"{found.__qualname__!r}, defined in {where}, where the second process can't find "
                "it. Move it to the top level of a module and import it from there, or pass "
                'imports=("my_module",), the module that registers it.'
            )
    return objects


def run_python(*arguments: str | os.PathLike, backend: str) -> None:
    """Run Python in a new process, on the CPU and with Keras on `backend`; raise its error.

    It inherits `sys.path`, and its standard input ends with this process.
    """
    environment = {
        **os.environ,
        # "" means the current folder, e.g. in a notebook.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "KERAS_BACKEND": backend,
        # This process may hold the memory of the accelerator.
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


def main(folder: str, path: str) -> None:
    """Write the graph that `convert` has put into a folder, and run it if there are inputs."""
    folder = Path(folder)
    # The folder of the temporary file, which holds this one.
    runtimes.end_with_parent(folder.parent)
    request = json.loads((folder / REQUEST).read_text())
    for module in (*request["imports"], *(module for module, _ in request["custom"].values())):
        importlib.import_module(module)
    custom = {
        key: keras.saving.get_registered_object(key)
        or operator.attrgetter(name)(sys.modules[module])
        for key, (module, name) in request["custom"].items()
    }
    models = {
        file.stem: keras.saving.load_model(file, custom, compile=False)
        for file in folder.glob("*.keras")
    }
    calibration, format = folder / CALIBRATION, FORMATS[request["format"]]
    images = np.load(calibration) if calibration.exists() else None
    graph = Graph(models, calibration=images, **request["graph"])
    convert(graph, format, Path(path))
    if (folder / INPUTS).exists():
        runtimes.main(format.name, path, folder / INPUTS, folder / OUTPUTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
