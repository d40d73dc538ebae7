"""Whether an exported model computes what the model computes."""

import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import without_gradients
from keras_vitx.export.process import require_tensorflow, run_python

TOLERANCE = 1e-5
"""Largest difference, over the largest output, where all layers compute in float32."""

TOLERANCE_MIXED = 5e-2
"""The same where a layer computes in half precision: a few roundings of bfloat16."""


def verify(
    path: str | os.PathLike,
    model: keras.Model,
    images: Any = None,
    *,
    tolerance: float | None = None,
) -> float:
    r"""Compare a SavedModel with the model it was made from.

    A new process, in which neither Keras nor this package can be imported, runs
    the SavedModel's endpoint `serve` on the CPU, on one image and on all of them.
    The difference is $\max|y_{saved} - y| / \max|y|$ with $y$ what `model` gives here.

    Args:
        path: The folder of the SavedModel.
        model: The model.
        images: Preprocessed images, `(n, height, width, channels)`; None takes
            three of seeded noise.
        tolerance: Largest difference that passes. None is 1e-5, or 5e-2 where a
            layer computes in less than float32. A GPU that rounds products to
            TF32 needs a looser one.

    Returns:
        The largest difference, of all outputs and both batch sizes.

    Raises:
        ValueError: when an argument is wrong, or the difference is above
            `tolerance`.
        ImportError: when TensorFlow is not installed.
        OSError: when `path` is no SavedModel, or it can't be run
            (`ChildProcessError`).
    """
    path = Path(path)
    check_model(model)
    check_tolerance(tolerance)
    images = _images_for(model, images)
    require_tensorflow()
    if not (path / "saved_model.pb").is_file():
        raise FileNotFoundError(f"path: {str(path)!r} is not the folder of a SavedModel.")
    if tolerance is None:
        tolerance = TOLERANCE_MIXED if _is_mixed(model) else TOLERANCE

    batches = {"one": images[:1], "all": images}
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(inputs, **batches)
        # By its path, since as a module it would bring this package with it.
        run_python(Path(__file__).with_name("serve.py"), path, inputs, outputs)
        saved = dict(np.load(outputs))
    difference = max(
        _difference(saved[f"{name}.{index}"], output)
        for name, batch in batches.items()
        for index, output in enumerate(_outputs(model, batch))
    )
    if not difference <= tolerance:
        raise ValueError(
            f"The SavedModel at {str(path)!r} differs from model {model.name!r} by "
            f"{difference:.2g} of its largest output; tolerance is {tolerance:g}."
        )
    return difference


def check_model(model: keras.Model) -> None:
    """Check that `model` takes one batch of images of a known shape.

    Raises:
        ValueError: when it does not.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"model should be a built Keras model, not {model!r}.")
    shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or []]
    if len(shapes) != 1 or len(shapes[0]) != 4 or None in shapes[0][1:]:
        raise ValueError(
            "model should take images (batch, height, width, channels) of one size; "
            f"it takes {shapes or 'what it does not say'}."
        )


def check_tolerance(tolerance: float | None) -> None:
    """Check that `tolerance` is a number that a difference may be below.

    Raises:
        ValueError: when it is not.
    """
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and tolerance >= 0):
        raise ValueError(f"tolerance should be None or a number from 0 on, not {tolerance!r}.")


def _images_for(model, images):
    shape = tuple(model.inputs[0].shape[1:])
    if images is None:
        return np.random.default_rng(0).standard_normal((3, *shape), "float32")
    images = ops.convert_to_numpy(images).astype("float32")
    if images.ndim != 4 or len(images) < 2 or images.shape[1:] != shape:
        sides = ", ".join(map(str, shape))
        raise ValueError(f"images should be (2 or more, {sides}), not {images.shape}.")
    return images


def _is_mixed(model):
    return any(layer.compute_dtype in ("bfloat16", "float16") for layer in model.layers)


def _outputs(model, images):
    """Return what the model gives, as a flat list of float32 arrays."""
    with without_gradients():
        outputs = keras.tree.flatten(model(images, training=False))
        return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in outputs]


def _difference(saved, output):
    if saved.shape != output.shape:
        raise ValueError(
            f"The SavedModel gives an output of shape {saved.shape}, "
            f"the model one of {output.shape}."
        )
    return float(np.max(np.abs(saved - output)) / (np.max(np.abs(output)) or 1))
