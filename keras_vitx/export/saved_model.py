"""TensorFlow SavedModels, from every backend."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras

from keras_vitx.export.custom import find_custom
from keras_vitx.export.process import require_tensorflow, run_python
from keras_vitx.export.verify import check_model, check_tolerance
from keras_vitx.export.verify import verify as measure
from keras_vitx.files import written_whole

PARTS = {"saved_model.pb", "fingerprint.pb", "variables", "assets"}
"""What TensorFlow writes into the folder of a SavedModel."""


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: The file or folder.
        difference: Largest difference between its outputs and the model's,
            over the largest output; None where it was not measured.
    """

    path: Path
    difference: float | None


def saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    verify: bool = True,
    tolerance: float | None = None,
    overwrite: bool = False,
    imports: Sequence[str] = (),
) -> Exported:
    """Write a model as a TensorFlow SavedModel, which runs without Keras.

    Its endpoint `serve`, which is also the signature `serving_default`, takes
    float32 images `(batch, height, width, channels)`, any number of them, and
    gives what the model gives outside of training. The precision of the layers
    is kept. The model itself stays as it is.

    The operations are TensorFlow's own under every backend: a model that lives
    in JAX or PyTorch goes through a temporary `.keras` file and a second process,
    so it runs wherever TensorFlow does, not only where it was exported. Custom layers
    and functions in the model are imported there from their modules; of a script, only
    imports, classes, functions and constants are run. They must be made of `keras.ops`.

    Args:
        model: A built model of the zoo, or features cut out of one.
        path: The folder to write. It is written whole or not at all.
        verify: Whether to compare with the model before the folder is put in
            place; see `keras_vitx.export.verify`.
        tolerance: Largest difference that `verify` lets pass. None is its own.
        overwrite: Whether to replace a SavedModel at `path`. Anything else
            there is never replaced.
        imports: Names of modules to import in the second process, which register custom
            classes that it would not find: those of a notebook.

    Raises:
        ValueError: when an argument is wrong, the model has a custom class that the
            second process can't find, or the SavedModel's outputs differ from the
            model's.
        ImportError: when TensorFlow is not installed.
        OSError: when the folder can't be written, something stands at `path`,
            or the second process fails (`ChildProcessError`).
    """
    path = Path(path)
    check_model(model)
    check_tolerance(tolerance)
    require_tensorflow()
    _check_free(path, overwrite)
    is_here = keras.backend.backend() == "tensorflow"
    custom = None if is_here else json.dumps(find_custom(model, imports))
    difference = None
    with written_whole(path) as unfinished:
        if is_here:
            write(model, unfinished)
        else:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "model.keras")
                model.save(file)
                run_python("-m", "keras_vitx.export.from_file", file, unfinished, custom)
        if verify:
            difference = measure(unfinished, model, tolerance=tolerance)
    return Exported(path, difference)


def write(model: keras.Model, folder: str | os.PathLike) -> None:
    """Write the SavedModel of a model that lives in TensorFlow."""
    model.export(folder, format="tf_saved_model", verbose=False)


def _check_free(path, overwrite):
    if not path.exists() and not path.is_symlink():
        return
    names = {part.name for part in path.iterdir()} if path.is_dir() else set()
    if path.is_symlink() or "saved_model.pb" not in names or not names <= PARTS:
        raise FileExistsError(
            f"path: {str(path)!r} exists and holds other things than a SavedModel; "
            "give a folder that is not there yet."
        )
    if not overwrite:
        raise FileExistsError(
            f"path: {str(path)!r} holds a SavedModel already; overwrite=True replaces it."
        )
