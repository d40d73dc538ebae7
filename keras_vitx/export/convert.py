"""Writing a graph under the backend of its format, and running the file, in a subprocess.

`python -m keras_vitx.export.convert DIRECTORY PATH` writes the graph in DIRECTORY to PATH.
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
from typing import Any

import keras
import numpy as np

from keras_vitx.export import runtimes
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.graph import Format, Graph
from keras_vitx.serialized import objects_in, packed, unpacked

REQUEST = "request.json"
INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"
PLAIN = ("outputs", "classes", "size", "data_format", "precision", "compute_dtype", "opset", "top")
"""The fields of a graph besides its layers."""
PACKAGES = {"keras", "keras_vitx", "builtins"}
"""Packages whose classes and functions every process can import."""


def convert(
    graph: Graph,
    format: Format,
    path: Path,
    imports: Sequence[str] = (),
    batches: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a graph under the format's backend; return the file's outputs for `batches`, if any."""
    if keras.backend.backend() == format.backend:
        format.write(graph.in_dtypes_of(format), path)
        return {} if batches is None else run_file(path, format, batches)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        directory, configs = Path(directory), {}
        for name, network in graph.networks.items():
            configs[name], weights, classes = packed(network)
            np.savez(directory / f"{name}.npz", *weights)
        layer = graph.preprocessing
        request = {
            "format": format.name,
            "imports": list(imports),
            "custom": custom_objects(configs["serve"], classes, imports),
            "networks": configs,
            "preprocessing": layer and keras.saving.serialize_keras_object(layer),
            "graph": {name: getattr(graph, name) for name in PLAIN},
        }
        (directory / REQUEST).write_text(json.dumps(request))
        if batches is not None:
            np.savez(directory / INPUTS, **batches)
        run_python("-m", "keras_vitx.export.convert", directory, path, backend=format.backend)
        return {} if batches is None else dict(np.load(directory / OUTPUTS))


def run_file(
    path: Path, format: Format, batches: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run a file without Keras; return its outputs by `<batch>.<name>`, and `latency_ms`."""
    with tempfile.TemporaryDirectory() as directory:
        inputs, outputs = Path(directory, INPUTS), Path(directory, OUTPUTS)
        np.savez(inputs, **batches)
        run_python(runtimes.__file__, format.name, path, inputs, outputs, backend=format.backend)
        return dict(np.load(outputs))


def custom_objects(
    config: dict[str, Any], classes: Mapping[str, type], imports: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return the modules and names of a model's custom classes and functions, by registered name.

    They are those of its layers, and registered ones that its config names: a module that only a
    config names is never imported.
    """
    locations = {}
    for name, each in [*objects_in(config), *classes.items()]:
        if each is None or each.__module__.partition(".")[0] in PACKAGES:
            continue
        if each.__module__ != "__main__" and "<locals>" not in each.__qualname__:
            locations[name] = [each.__module__, each.__qualname__]
        elif not imports:
            scope = "a script or a session" if each.__module__ == "__main__" else "a function"
            raise ValueError(
                f"`model` must use classes and functions that a module defines. Received: "
                f"{each.__qualname__!r}, defined in {scope}, where the second process can't find "
                "it. Move it to the top level of a module and import it from there, or pass "
                'imports=("my_module",), the module that registers it.'
            )
    return locations


def run_python(*arguments: str | os.PathLike, backend: str) -> None:
    """Run Python in a subprocess on the CPU, with Keras on `backend`; raise its error.

    It inherits `sys.path`, and its standard input ends with this process.
    """
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
        stderr = process.stderr.read().strip()
    if process.returncode:
        reason = stderr.splitlines()[-1] if stderr else f"exit status {process.returncode}"
        # Some messages of Keras end with a whole config.
        reason = textwrap.shorten(reason, 300, placeholder=" ...")
        error = ChildProcessError(f"The second process ({backend}) failed: {reason}")
        error.add_note(stderr)
        raise error


def main(directory: str, path: str) -> None:
    """Write the graph that `convert` saved in a directory, and run the file if there are inputs."""
    directory = Path(directory)
    # The hidden directory of `temporary_beside`, which contains `directory`.
    runtimes.end_with_parent(directory.parents[1])
    request = json.loads((directory / REQUEST).read_text())
    for module in (*request["imports"], *(module for module, _ in request["custom"].values())):
        importlib.import_module(module)
    custom = {
        name: operator.attrgetter(attribute)(sys.modules[module])
        for name, (module, attribute) in request["custom"].items()
    }
    networks = {}
    for name, config in request["networks"].items():
        with np.load(directory / f"{name}.npz") as weights:
            networks[name] = unpacked(config, list(weights.values()), custom)
    layer = request["preprocessing"]
    layer = layer and keras.saving.deserialize_keras_object(layer)
    graph = Graph(networks, preprocessing=layer, **request["graph"])
    convert(graph, FORMATS[request["format"]], Path(path))
    if (directory / INPUTS).exists():
        runtimes.main(request["format"], path, directory / INPUTS, directory / OUTPUTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
