"""`keras_vitx.predictor(model)`: images in, class names out, from several threads."""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.backend import without_gradients
from keras_vitx.checks import check
from keras_vitx.data.images import images_of
from keras_vitx.data.predictions import class_names
from keras_vitx.export import runtimes
from keras_vitx.export.formats import existing_format, format_of
from keras_vitx.export.record import read_record
from keras_vitx.outputs import outputs_of
from keras_vitx.preprocessing import ModelInput, Preprocessing

BATCH_SIZES = (1, 8, 32)


class Predictor:
    """A compiled classifier that several threads may call.

    `predictor(images)` returns class names. Batches are padded to one of a few sizes, each of which
    is compiled in the first call that needs it.

    Attributes:
        input: Shape and preprocessing of the images; a height or width of None is any.
        class_names: Names of the classes, in the order of the probabilities.
        batch_sizes: The sizes to which batches are padded, ascending.
    """

    def __init__(
        self,
        run: Callable[[np.ndarray], np.ndarray],
        input: ModelInput,
        dtype: str,
        class_names: Sequence[str],
        batch_sizes: Sequence[int] = BATCH_SIZES,
    ):
        sizes = sorted(set(batch_sizes))
        are_positive = sizes and all(isinstance(size, int) and size > 0 for size in sizes)
        check(are_positive, "`batch_sizes` must be positive integers.", batch_sizes)
        self.input, self.class_names, self.batch_sizes = input, tuple(class_names), tuple(sizes)
        # NumPy has no bfloat16; both sides cast float32 to it.
        self._run, self._dtype = run, "float32" if "float" in dtype else dtype
        self._lock, self._compiled_shapes = threading.Lock(), set()

    def __call__(self, images: Any, top: int = 5) -> list[list[tuple]]:
        """Return the most probable classes of images.

        Args:
            images: One image or several, as in `keras_vitx.preprocess_input`: paths, contents of
                files, open files (uploads), PIL images or arrays of pixels.
            top: Number of classes per image.

        Returns:
            For each image, a list of (WordNet id, name, probability), as from
            `keras_vitx.decode_predictions`.

        Raises:
            ValueError: if an array is not an image.
            OSError: if a file can't be decoded.
        """
        several = isinstance(images, (list, tuple))
        images = images_of(list(map(_on_host, images)) if several else _on_host(images))
        # Images of any size are not resized: one per batch.
        groups = [[one] for one in images] if None in self.input.size else [images]
        batches = [self.probabilities(data.preprocess_input(one, self.input)) for one in groups]
        return data.decode_predictions(np.concatenate(batches), top, self)

    def probabilities(self, batch: np.ndarray) -> np.ndarray:
        """Return the probabilities, `(n, classes)`, of a preprocessed batch."""
        batch = np.rint(batch) if "int" in self._dtype else batch
        batch, largest, outputs = batch.astype(self._dtype), self.batch_sizes[-1], []
        for chunk in (batch[start : start + largest] for start in range(0, len(batch), largest)):
            size = next(size for size in self.batch_sizes if size >= len(chunk))
            padded = np.pad(chunk, [(0, size - len(chunk))] + [(0, 0)] * (chunk.ndim - 1))
            # Keras traces in one thread at a time.
            with contextlib.nullcontext() if padded.shape in self._compiled_shapes else self._lock:
                outputs.append(self._run(padded)[: len(chunk)])
            self._compiled_shapes.add(padded.shape)
        return np.concatenate(outputs)


def _on_host(image: Any) -> Any:
    """Return a tensor of the backend, which may be on a GPU, as an array."""
    return keras.ops.convert_to_numpy(image) if keras.ops.is_tensor(image) else image


def predictor(
    model: keras.Model | str | os.PathLike,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    trust: bool = False,
) -> Predictor:
    """Return a classifier for servers: images in, class names out, from several threads.

    ```python
    classify = kv.predictor(kv.CaiT_Mini(weights="cifar10"))
    [[(_, name, probability)]] = classify("cat.png", top=1)
    ```

    After training the model further, make another one. Under JAX, don't call Keras's `predict` from
    several threads: it leaves the model without variables.

    Args:
        model: A classifier, with `preprocessing` or layers that state it (`preprocess_input`); or
            the path of an export with preprocessing inside and its record beside it, which runs in
            the runtime of its format, on the CPU.
        batch_sizes: The sizes to which batches are padded; larger ones are split.
        trust: Whether you trust the file. SavedModel, torch.export and StableHLO files can do more
            than compute, and are only opened with `trust=True`.

    Raises:
        ValueError: if the model is not a classifier of images or does not state which ones it
            takes, or the file lacks preprocessing, probabilities, a record or your trust.
        ImportError: if the runtime of the file is not installed.
    """
    if isinstance(model, (str, os.PathLike)):
        return _of_file(Path(model).expanduser(), batch_sizes, trust)
    outputs, images = outputs_of(model), ModelInput.of(model, any_size=True)
    rule = "`model` must take images of 1 or 3 channels."
    check(images.channels in (1, 3), rule, images.channels)
    rule = "`model` must end in a sigmoid, or several outputs."
    check(outputs.kind != "logits" or outputs.classes > 1, rule, outputs)
    names, dtype = class_names(model, outputs.classes), model.inputs[0].dtype
    run = _compiled(model, outputs.probabilities)
    return Predictor(run, images, keras.backend.standardize_dtype(dtype), names, batch_sizes)


def _compiled(model, probabilities) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of a batch that does not modify the model."""
    backend = keras.backend.backend()

    def run(images):
        outputs = probabilities(model(keras.ops.convert_to_tensor(images), training=False))
        return keras.ops.cast(outputs, "float32")

    if backend == "jax":
        import jax

        values = [variable.value for variable in model.variables]

        @jax.jit
        def call(values, images):
            with keras.StatelessScope(zip(model.variables, values, strict=True)):
                return run(images)

        return lambda images: np.asarray(call(values, images))

    if backend == "tensorflow":
        import tensorflow as tf

        graph = tf.function(run, autograph=False)
        return lambda images: graph(tf.constant(images)).numpy()

    lock = threading.Lock()

    def run_locked(images):
        # PyTorch divides each call among the cores; layers may cache their last results.
        with lock, without_gradients():
            return keras.ops.convert_to_numpy(run(images))

    return run_locked


def _of_file(path: Path, batch_sizes: Sequence[int], trust: bool) -> Predictor:
    format = existing_format(path, trust)
    record = read_record(path, format)
    options = record.get("options", {})
    has_names = record.get("classes") and record.get("outputs") == ["probabilities"]
    if not options.get("preprocessing") or not has_names:
        raise ValueError(
            f"{path} must have been exported with preprocessing inside, return probabilities, "
            "and have its record beside it."
        )
    run = runtimes.load(format.name, path)
    shape, dtype = (record["inputs"]["images"][key] for key in ("shape", "dtype"))
    is_first = options.get("data_format") == "channels_first"
    if is_first:
        shape = [shape[0], *shape[2:], shape[1]]

    def probabilities(batch):
        batch = np.ascontiguousarray(np.moveaxis(batch, -1, 1)) if is_first else batch
        return run(batch)["probabilities"]

    images = ModelInput(tuple(shape), Preprocessing.pixels(shape[-1]))
    return Predictor(probabilities, images, dtype, record["classes"], batch_sizes)


def is_exported(path: str | os.PathLike) -> bool:
    """Return whether a path is an exported file or directory."""
    path = Path(path)
    return path.exists() and format_of(path).matches(path)
