"""`keras_vitx.predictor(model)`: images in, class names out, from several threads."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.backend import without_gradients
from keras_vitx.data.images import images_of
from keras_vitx.data.predictions import class_names
from keras_vitx.export.compare import dtype_of_images
from keras_vitx.outputs import outputs_of
from keras_vitx.preprocessing import ModelInput

BATCH_SIZES = (1, 8, 32)


class Predictor:
    """A compiled classifier that several threads may call.

    `predictor(images)` returns class names. Batches are padded to one of a few sizes, each of which
    is compiled in the first call that needs it (under PyTorch only that of one image).

    Attributes:
        input: Shape and preprocessing of the images; a height or width of None is any.
        class_names: Names of the classes, in the order of the probabilities.
        batch_sizes: The sizes to which batches are padded, ascending.
    """

    def __init__(self, model: keras.Model, batch_sizes: Sequence[int] = BATCH_SIZES):
        outputs = outputs_of(model)
        if outputs.from_logits and outputs.classes == 1:  # Its softmax would be 1.
            raise ValueError(f"`model` must end in a sigmoid, or several outputs. {outputs}")
        self.input = ModelInput.of(model, any_size=True)
        self.class_names = class_names(model, outputs.classes)
        self.batch_sizes = tuple(sorted(batch_sizes))
        self._model = model
        self._run = _function_of(model, outputs.probabilities)
        self._dtype = dtype_of_images(model)
        self._lock = threading.Lock()
        self._compiled_shapes = set()

    def __reduce__(self):
        # Compiled again where it is unpickled. Plain Keras models lose their attributes.
        names = ("preprocessing", "class_names")
        stated = {name: getattr(self._model, name, None) for name in names}
        return _again, (self._model, stated, self.batch_sizes)

    def __call__(self, images: Any, top: int = 5) -> list[list[tuple]]:
        """Return the most probable classes of images.

        Args:
            images: One image or several, as in `keras_vitx.preprocess_input`: paths, contents of
                files, open files (uploads), PIL images or arrays of pixels.
            top: Number of classes per image.

        Returns:
            For each image, a list of (id, name, probability), as from
            `keras_vitx.decode_predictions`.

        Raises:
            ValueError: if an array is not an image.
            OSError: if a file can't be decoded.
        """
        several = isinstance(images, (list, tuple))
        images = images_of(list(map(_on_host, images)) if several else _on_host(images))
        # Images of any size are not resized: one per batch.
        groups = [[image] for image in images] if None in self.input.size else [images]
        batches = [self.probabilities(data.preprocess_input(group, self.input)) for group in groups]
        return data.decode_predictions(np.concatenate(batches), top, self)

    def probabilities(self, batch: np.ndarray) -> np.ndarray:
        """Return the probabilities, `(n, classes)`, of a preprocessed batch."""
        batch = np.rint(batch) if "int" in self._dtype else batch
        batch = batch.astype(self._dtype)
        largest = self.batch_sizes[-1]
        outputs = []
        for start in range(0, len(batch), largest):
            chunk = batch[start : start + largest]
            size = next(size for size in self.batch_sizes if size >= len(chunk))
            padded = np.pad(chunk, [(0, size - len(chunk))] + [(0, 0)] * (chunk.ndim - 1))
            outputs.append(self._call(padded)[: len(chunk)])
        return np.concatenate(outputs)

    def _call(self, batch):
        if batch.shape in self._compiled_shapes:
            return self._run(batch)
        # Keras traces in one thread at a time.
        with self._lock:
            outputs = self._run(batch)
        self._compiled_shapes.add(batch.shape)
        return outputs


def _again(model, stated, batch_sizes) -> Predictor:
    for name, value in stated.items():
        if getattr(model, name, None) is None and value is not None:
            setattr(model, name, value)
    return Predictor(model, batch_sizes)


def _on_host(image: object) -> Any:
    """Return a tensor of the backend, which may be on a GPU, as an array."""
    return keras.ops.convert_to_numpy(image) if keras.ops.is_tensor(image) else image


def predictor(model: keras.Model, *, batch_sizes: Sequence[int] = BATCH_SIZES) -> Predictor:
    """Return a classifier for servers: images in, class names out, from several threads.

    ```python
    classify = kv.predictor(kv.CaiT_Mini(weights="cifar10"))
    [[(_, name, probability)]] = classify("cat.png", top=1)
    ```

    After training the model further, make another one. Under JAX, don't call Keras's `predict` from
    several threads: it leaves the model without variables.

    Args:
        model: A classifier with `preprocessing`.
        batch_sizes: The sizes to which batches are padded; larger ones are split.

    Raises:
        ValueError: if the model is not a classifier of images or does not state which ones it
            takes.
    """
    return Predictor(model, batch_sizes)


def _function_of(model, probabilities) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of a batch that does not modify the model."""

    def run(images):
        outputs = probabilities(model(keras.ops.convert_to_tensor(images), training=False))
        return keras.ops.cast(outputs, "float32")

    if keras.backend.backend() == "jax":
        import jax

        values = [variable.value for variable in model.variables]

        @jax.jit
        def call(values, images):
            with keras.StatelessScope(zip(model.variables, values, strict=True)):
                return run(images)

        return lambda images: np.asarray(call(values, images))

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        graph = tf.function(run, autograph=False)
        return lambda images: graph(tf.constant(images)).numpy()

    from torch.fx.experimental.proxy_tensor import make_fx

    lock = threading.Lock()
    one_image = (1, *model.inputs[0].shape[1:])

    @functools.cache
    def graph(dtype):
        # Keras's calls of layers are a tenth of the time of one image, and of eight hardly any.
        return make_fx(run, pre_dispatch=True)(keras.ops.zeros(one_image, dtype))

    def run_locked(images):
        # PyTorch divides each call among the cores; layers may cache their last results.
        with lock, without_gradients():
            function = graph(images.dtype.name) if images.shape == one_image else run
            return keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(images)))

    return run_locked
