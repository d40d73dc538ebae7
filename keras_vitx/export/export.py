"""`keras_vitx.export(model, path)`."""

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_vitx.checks import check
from keras_vitx.data.predictions import class_names
from keras_vitx.export.compare import batches_of, check_equal
from keras_vitx.export.formats import format_of, write_class_names
from keras_vitx.export.fuse import can_be_fused, fuse
from keras_vitx.export.graph import (
    NAMES,
    PROBABILITIES,
    in_float32,
    kind_of,
    output_names,
    preprocessing_of,
    with_output,
    with_preprocessing,
)
from keras_vitx.export.process import write
from keras_vitx.files import atomic_write, local_path

LOCK = threading.Lock()
"""Held by an export: the tracers of PyTorch and ONNX have one state for all threads."""


class Exported(NamedTuple):
    """The result of an export.

    Attributes:
        path: The file or directory that was written.
        format: Name of the format.
        shape: Shape of the input `images`, `(None, height, width, channels)`; None is any size.
        dtype: Dtype of the input: `"uint8"` are pixels.
        outputs: Names of the outputs.
        classes: Names of the classes, in the order of the outputs; empty without a classifier. One
            sigmoid output has two, and is the probability of the second one.
        difference: Largest difference between the file's outputs and the model's, relative to the
            largest output.
    """

    path: Path
    format: str
    shape: tuple[int | None, ...]
    dtype: str
    outputs: tuple[str, ...]
    classes: tuple[str, ...]
    difference: float


def export(
    model: keras.Model,
    path: str | os.PathLike,
    format: str | None = None,
    *,
    preprocessing: bool | tuple[int, int] = False,
    outputs: str | None = None,
    images: Any = None,
    tolerance: float | None = None,
    overwrite: bool = False,
) -> Exported:
    """Export a model, on any backend, to a file that runs without Keras.

    | format | path | opened by | written by |
    |---|---|---|---|
    | `saved_model` | a directory | TensorFlow | TensorFlow |
    | `onnx` | `.onnx` | ONNX Runtime | PyTorch, onnxscript |
    | `torch` | `.pt2` | `torch.export.load` | PyTorch |

    The input is named `images`, `(batch, height, width, channels)`, with any batch size. The
    output is named `probabilities`, `logits` or `features`; several outputs have the names of the
    model's. Names of classes are in ONNX's metadata `class_names` and in a SavedModel's
    `assets.extra/class_names.json`, as JSON. The file computes in float32, and is fused where
    `keras_vitx.fuse` can. Before it is moved into place, a process that can't import Keras runs it
    in its own runtime on the CPU, and its outputs are compared with the model's, as by
    `keras_vitx.export.compare`.

    If the format needs another backend than the model's, a second process loads the model from a
    temporary `.keras` file and writes it. It imports the modules that define the model's custom
    layers and functions, which must be written with `keras.ops`. Of several threads, one exports
    at a time.

    Args:
        model: A built model whose input is one batch of images. Height and width may be
            unknown if its layers and the format allow it.
        path: The file or directory to write.
        format: A name in the table. None means the format of the suffix of `path`, or
            `saved_model` without one.
        preprocessing: Whether the file takes pixels, uint8, and resizes, crops and normalizes them
            as `ImagePreprocessing`. `(height, width)` is the size of the pixels. True means any
            size in a SavedModel and in ONNX, and in `.pt2` the size that is cropped without
            resizing.
        outputs: `"probabilities"` or `"logits"`; None keeps the model's.
        images: Images for the comparison, in the format of the file's input. None means images
            of the shipped Fashion-MNIST sample.
        tolerance: Largest difference allowed; None means the default of `compare`.
        overwrite: Whether to replace a file, or a SavedModel, at `path`.

    Raises:
        ValueError: if an argument is invalid, the second process can't find a custom class,
            or the outputs differ.
        ImportError: if a package that writes or runs the format is not installed.
        OSError: if the file can't be written, `path` already exists, or the second
            process fails (`ChildProcessError`).
    """
    path = local_path(path)
    format = format_of(path, format)
    check_target(path, overwrite)
    with LOCK:
        kind = kind_of(model)
        is_known = outputs is None or (kind and outputs in ("logits", PROBABILITIES))
        rule = "`outputs` must be None, or 'logits' or 'probabilities' of a classifier."
        check(is_known, rule, outputs)
        classes = class_names(model, model.output_shape[-1]) if kind else ()
        fast = model
        if can_be_fused(model):
            fast = fuse(model)
        old = NAMES[kind]
        new = outputs or old
        names = output_names(model, new)
        pixels = preprocessing_of(model, preprocessing, format.any_size)
        whole, fast = (
            with_preprocessing(with_output(network, new, old), pixels)
            for network in (model, in_float32(fast))
        )
        batches = batches_of(whole, images)
        with atomic_write(path) as temporary:
            outputs = write(fast, names, format, temporary, batches)
            difference = check_equal(whole, batches, outputs, tolerance)
            if classes:
                write_class_names(temporary, format, classes)
    shape, dtype = whole.input_shape, keras.backend.standardize_dtype(whole.inputs[0].dtype)
    return Exported(path, format.name, shape, dtype, names, classes, difference)


def check_target(path: Path, overwrite: bool) -> None:
    """Raise a FileExistsError unless `path` is free, an empty directory, or may be replaced."""
    is_directory = path.is_dir() and any(path.iterdir())
    if not overwrite and (is_directory or path.is_file()):
        raise FileExistsError(f"{str(path)!r} exists; overwrite=True replaces it.")
    if is_directory and not (path / "saved_model.pb").exists():
        raise FileExistsError(f"{str(path)!r} holds other things than a SavedModel.")
