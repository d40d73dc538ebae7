"""A model from a file, exported under a format's backend, in a process of its own.

Run as `python -m keras_vitx.export.elsewhere.from_file REQUEST.json PATH`. REQUEST.json is
written by `write_graph`; the models that it names lie beside it.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vitx.export.elsewhere.custom import explain, find_custom, load_custom
from keras_vitx.export.elsewhere.process import run_python
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.formats.base import Format, Graph
from keras_vitx.export.options.floats import in_floats

CALIBRATION = "calibration.npy"


def write_graph(graph: Graph, format: Format, path: Path, imports: Sequence[str] = ()) -> None:
    """Write a graph under the format's backend: here, or in a second process.

    Raises:
        ValueError: if the second process can't find a custom class.
        OSError: if the second process fails (`ChildProcessError`).
    """
    if keras.backend.backend() == format.backend:
        with in_floats(graph, format):
            format.write(graph, path)
        return
    request = {
        "format": format.name,
        "outputs": graph.outputs,
        "precision": graph.precision,
        "others": list(graph.others),
        "classes": graph.classes,
        "top": graph.top,
        "custom": find_custom(graph.model, imports),
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "request.json").write_text(json.dumps(request))
        if graph.calibration is not None:
            np.save(Path(folder, CALIBRATION), graph.calibration)
        for name, model in {"model": graph.model, **graph.others}.items():
            model.save(Path(folder, f"{name}.keras"))
        file = Path(folder, "request.json")
        run_python(
            "-m", "keras_vitx.export.elsewhere.from_file", file, path, backend=format.backend
        )


def main(file: str, path: str) -> None:
    """Write the model that a request describes to `path`."""
    request = json.loads(Path(file).read_text())
    try:
        objects = load_custom(request["custom"])

        def load(name):
            # Not compiled, since an export does not need the compile config.
            return keras.saving.load_model(
                Path(file).with_name(f"{name}.keras"), objects, compile=False
            )

        others = {name: load(name) for name in request["others"]}
        calibration = Path(file).with_name(CALIBRATION)
        graph = Graph(
            load("model"),
            tuple(request["outputs"]),
            request["precision"],
            others,
            tuple(request["classes"]),
            request["top"],
            np.load(calibration) if calibration.exists() else None,
        )
        write_graph(graph, FORMATS[request["format"]], Path(path))
    except Exception as error:
        explain(error)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
