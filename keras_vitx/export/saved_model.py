"""Export to TensorFlow SavedModels, from every backend."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_vitx.export.custom import check_imports, find_custom
from keras_vitx.export.process import require_tensorflow, run_python
from keras_vitx.export.verify import batches_for, check_model, check_tolerance
from keras_vitx.export.verify import verify as measure
from keras_vitx.files import written_whole

PARTS = {"saved_model.pb", "fingerprint.pb", "variables", "assets"}
"""Contents of a SavedModel folder."""


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: The file or folder that was written.
        difference: Largest difference between its outputs and the model's, relative to the
            largest output; None if it was not verified.
    """

    path: Path
    difference: float | None


def saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    verify: bool = True,
    images: Any = None,
    tolerance: float | None = None,
    overwrite: bool = False,
    imports: Sequence[str] = (),
) -> Exported:
    """Export a model to a TensorFlow SavedModel, which runs without Keras.

    The endpoint `serve`, which is also the signature `serving_default`, takes any number of
    images `(batch, height, width, channels)` in the model's input dtype and returns the
    outputs of inference. The layers keep their precision, and the model in memory is not
    modified.

    The SavedModel consists of native TensorFlow operations on every backend: under JAX and
    PyTorch, the model is passed in a temporary `.keras` file to a second process, which runs
    TensorFlow. That process imports the modules of custom layers and functions; of a script,
    it executes only imports, classes, functions and constants. Custom objects must be
    written with `keras.ops`.

    Args:
        model: A built model whose input is one batch of images. Height and width may be
            unknown if its layers allow it.
        path: The folder to write. It is written atomically.
        verify: Whether to compare the outputs with the model's before the folder is moved
            into place; see `keras_vitx.export.verify`.
        images: Images for the comparison; None generates random ones.
        tolerance: Largest difference allowed; None means the default of `verify`.
        overwrite: Whether to replace a SavedModel at `path`. Anything else is never
            replaced.
        imports: Names of modules that the second process imports first, such as one that
            registers the custom classes of a notebook.

    Raises:
        ValueError: if an argument is invalid, the second process can't find a custom class,
            or the outputs differ.
        ImportError: if TensorFlow is not installed.
        OSError: if the folder can't be written, `path` already exists, or the second
            process fails (`ChildProcessError`).
    """
    path = Path(path)
    check_model(model)
    check_tolerance(tolerance)
    check_imports(imports)
    images = batches_for(model, images) if verify else None
    require_tensorflow()
    check_free(path, overwrite)
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
                run_python("-m", "keras_vitx.export.from_file", file, custom, unfinished)
        if verify:
            difference = measure(unfinished, model, images, tolerance=tolerance)
    return Exported(path, difference)


def write(model: keras.Model, folder: str | os.PathLike) -> None:
    """Write the SavedModel of a model, under TensorFlow."""
    model.export(folder, format="tf_saved_model", verbose=False)


def check_free(path: Path, overwrite: bool = False) -> None:
    """Check that a SavedModel may be written to `path`.

    Raises:
        FileExistsError: if `path` exists and is not a SavedModel, or is one and `overwrite`
            is False.
    """
    if not path.exists() and not path.is_symlink():
        return
    names = {part.name for part in path.iterdir()} if path.is_dir() else set()
    if path.is_symlink() or "saved_model.pb" not in names or not names <= PARTS:
        raise FileExistsError(
            f"path: {str(path)!r} exists and holds other things than a SavedModel; "
            "choose a new folder."
        )
    if not overwrite:
        raise FileExistsError(
            f"path: {str(path)!r} already holds a SavedModel; overwrite=True replaces it."
        )
