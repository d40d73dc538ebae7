"""`keras_vitx.predictor(model)`: images in, class names out, from several threads."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.backend import without_gradients
from keras_vitx.data.images import normalize, pixels_of, with_channels
from keras_vitx.data.predictions import class_names
from keras_vitx.export import runtimes
from keras_vitx.export.check import in_layout, input_dtype
from keras_vitx.export.formats import existing_format, format_of
from keras_vitx.export.record import read_record
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.outputs import outputs_of
from keras_vitx.preprocessing import ModelInput, Preprocessing

log = logging.getLogger(__name__)

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
        if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ValueError(f"`batch_sizes` must be positive integers. Received: {batch_sizes!r}.")
        self.input, self.class_names, self.batch_sizes = input, tuple(class_names), tuple(sizes)
        self._run, self._dtype = run, dtype
        self._lock, self._compiled_shapes = threading.Lock(), set()

    def __call__(self, images: Any, top: int = 5) -> list[list[tuple]]:
        """Return the most probable classes of images.

        Args:
            images: One image or a list of them, as in `keras_vitx.preprocess_input`: paths, PIL
                images or arrays of pixels.
            top: Number of classes per image.

        Returns:
            For each image, a list of (WordNet id, name, probability), as from
            `keras_vitx.decode_predictions`.

        Raises:
            ValueError: if an array is not an image.
            OSError: if a file can't be decoded.
        """
        if None not in self.input.input_shape[1:]:
            probabilities = self.probabilities(data.preprocess_input(images, self.input))
        else:
            images = images if isinstance(images, (list, tuple)) else [images]
            batches = [self.probabilities(self._batch_of(image)) for image in images]
            probabilities = np.concatenate(batches)
        return data.decode_predictions(probabilities, top, self)

    def probabilities(self, batch: np.ndarray) -> np.ndarray:
        """Return the probabilities, `(n, classes)`, of a preprocessed batch."""
        if "int" in self._dtype:
            batch = np.rint(batch).astype(self._dtype)
        outputs = []
        for start in range(0, len(batch), self.batch_sizes[-1]):
            chunk = batch[start : start + self.batch_sizes[-1]]
            size = next(size for size in self.batch_sizes if size >= len(chunk))
            padded = np.pad(chunk, [(0, size - len(chunk))] + [(0, 0)] * (chunk.ndim - 1))
            # Keras traces in one thread at a time.
            with contextlib.nullcontext() if padded.shape in self._compiled_shapes else self._lock:
                outputs.append(self._run(padded)[: len(chunk)])
            self._compiled_shapes.add(padded.shape)
        return np.concatenate(outputs)

    def batches(self, paths: Sequence[Path], batch_size: int) -> Iterator[data.FileBatch]:
        """Yield batches of image files, decoded and preprocessed for `probabilities`."""
        if None not in self.input.input_shape[1:]:
            yield from data.batches_of_files(paths, self.input, batch_size)
            return
        # Images of any size: one per batch.
        for path in paths:
            try:
                yield data.FileBatch([path], self._batch_of(path), {})
            except OSError as error:
                yield data.FileBatch([], np.empty(0), {path: error})

    def _batch_of(self, image: Any) -> np.ndarray:
        """Return one image, neither resized nor cropped, as a batch for a model of any size."""
        image = with_channels(pixels_of(image), self.input.channels)
        return normalize(image, self.input.preprocessing)[None]


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

    The weights are the model's at the time of this call. Under JAX, don't call Keras's `predict`
    from several threads: it leaves the model without variables.

    Args:
        model: A classifier; or the path of an export with preprocessing inside and its record
            beside it, which runs in the runtime of its format, on the CPU.
        batch_sizes: The sizes to which batches are padded; larger ones are split.
        trust: Whether you trust the file. SavedModel, torch.export and StableHLO files can do more
            than compute, and are only opened with `trust=True`.

    Raises:
        ValueError: if the model is not a classifier of images, or the file lacks preprocessing,
            probabilities, a record or your trust.
        ImportError: if the runtime of the file is not installed.
    """
    if isinstance(model, (str, os.PathLike)):
        return _file_predictor(Path(model).expanduser(), batch_sizes, trust)
    outputs = outputs_of(model)
    shape = model.input_shape
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[-1] not in (1, 3):
        raise ValueError(
            "The model's input must be images (batch, height, width, channels) with 1 or 3 "
            f"channels. Received: a model with input {shape}."
        )
    preprocessing = preprocessing_of(model)
    if preprocessing is None:
        log.warning("The model has no record of its preprocessing; it receives pixels in 0..255.")
        preprocessing = pixels(shape[-1])
    run = _compile(model, outputs.probabilities)
    # One sigmoid output is the probability of the second of two classes.
    is_binary = outputs.kind == "sigmoid" and outputs.classes == 1
    names = class_names(model, 2 if is_binary else outputs.classes)
    spec = ModelInput(shape, preprocessing)
    return Predictor(run, spec, input_dtype(model), names, batch_sizes)


def _compile(model, probabilities) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of a batch that does not modify the model."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        weights = [
            [variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        ]

        @jax.jit
        def call(weights, images):
            outputs, _ = model.stateless_call(*weights, images, training=False)
            return probabilities(outputs)

        return lambda images: np.asarray(call(weights, images), "float32")

    def run(images):
        outputs = probabilities(model(keras.ops.convert_to_tensor(images), training=False))
        return keras.ops.cast(outputs, "float32")

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


def _file_predictor(path: Path, batch_sizes: Sequence[int], trust: bool) -> Predictor:
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
    data_format = options.get("data_format", "channels_last")
    if data_format == "channels_first":
        shape = [shape[0], *shape[2:], shape[1]]
    spec = ModelInput(tuple(shape), pixels(shape[-1]))

    def probabilities(batch):
        return run(in_layout(batch, data_format))["probabilities"]

    return Predictor(probabilities, spec, dtype, record["classes"], batch_sizes)


def pixels(channels: int) -> Preprocessing:
    """Return the `Preprocessing` that keeps pixels in 0..255."""
    return Preprocessing(mean=[0] * channels, std=[1 / 255] * channels)


def is_exported(path: str | os.PathLike) -> bool:
    """Return whether a path is an exported file or directory."""
    path = Path(path)
    return path.exists() and format_of(path).matches(path)


def preprocessing_of(model: keras.Model) -> Preprocessing | None:
    """Return the preprocessing of a model or its first layer; `pixels` for `ImagePreprocessing`."""
    layers = [each for each in model.layers if not isinstance(each, keras.layers.InputLayer)]
    for layer in (model, layers[0]):
        if getattr(layer, "preprocessing", None):
            return layer.preprocessing
    if any(isinstance(layer, ImagePreprocessing) for layer in layers):
        return pixels(model.input_shape[-1])
    return None
