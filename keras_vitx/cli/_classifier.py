"""What `keras-vitx predict` runs: a model, or an exported file in the runtime of its format."""

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import keras_vitx as kv
from keras_vitx.cli._models import pixels, preprocessing_of
from keras_vitx.preprocessing import ModelInput

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Classifier:
    """A function from images to probabilities, and what it says of itself.

    Attributes:
        input: The images that it takes; a height or width of None is any.
        dtype: Their dtype.
        class_names: Names of the classes, in the order of the probabilities.
        probabilities: A function from `(batch, height, width, channels)` to
            `(batch, classes)`.
    """

    input: ModelInput
    dtype: str
    class_names: tuple[str, ...]
    probabilities: Callable[[np.ndarray], np.ndarray]

    def batches(self, paths: Sequence[Path], batch_size: int) -> Iterator:
        """Yield `data.FileBatch`es of images as the function takes them."""
        if None in self.input.input_shape[1:]:
            # Images of any size: each is a batch of its own.
            yield from map(self._one, paths)
            return
        for batch in kv.data.batches_of_files(paths, self.input, batch_size):
            yield batch._replace(images=self._cast(batch.images))

    def _one(self, path: Path):
        from keras_vitx.data.preprocessing import normalize

        try:
            image = kv.data.decode_image(path, self.input.channels)[None]
        except OSError as error:
            return kv.data.FileBatch([], np.empty(0), {path: error})
        return kv.data.FileBatch([path], self._cast(normalize(image, self.input.preprocessing)), {})

    def _cast(self, images: np.ndarray) -> np.ndarray:
        return np.rint(images).astype(self.dtype) if "int" in self.dtype else images


def of_network(network) -> Classifier:
    """Return the classifier of a model.

    Raises:
        ValueError: if the input of the model is not images, or it does not classify.
    """
    from keras_vitx.classifier import outputs_of
    from keras_vitx.data.predictions import class_names

    outputs = outputs_of(network)
    shape = network.input_shape
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[-1] not in (1, 3):
        raise ValueError(
            "The model's input must be images (batch, height, width, channels) with 1 or 3 "
            f"channels. Received: a model with input {shape}."
        )
    preprocessing = preprocessing_of(network)
    if preprocessing is None:
        log.warning("The model has no record of its preprocessing; it receives pixels in 0..255.")
        preprocessing = pixels(shape[-1])
    return Classifier(
        ModelInput(shape, preprocessing),
        network.inputs[0].dtype,
        class_names(network, outputs.classes),
        lambda images: outputs.probabilities(network.predict_on_batch(images)),
    )


def is_exported(model: str) -> bool:
    """Return whether `model` is the path of an exported file or folder."""
    from keras_vitx.export.formats import format_of

    path = Path(model)
    return path.exists() and format_of(path).is_one(path)


def of_file(model: str) -> Classifier:
    """Return the classifier of an exported file, which runs in the runtime of its format.

    Raises:
        ValueError: if the file was not written with preprocessing inside and probabilities.
        ImportError: if the runtime is not installed.
    """
    from keras_vitx.export.formats import format_of, require
    from keras_vitx.export.record import read_record

    path = Path(model)
    format = format_of(path)
    record = read_record(path, format)
    pixels_in = record.get("options", {}).get("preprocessing")
    if not pixels_in or not record.get("classes") or record["outputs"] != ["probabilities"]:
        raise ValueError(
            f"{model} must have been exported with preprocessing inside, return probabilities, "
            "and have its record beside it."
        )
    require(format)
    run = importlib.import_module(f"keras_vitx.export.runtimes.{format.name}").load(str(path))
    taken = record["inputs"]["images"]
    shape = tuple(taken["shape"])
    return Classifier(
        ModelInput(shape, pixels(shape[-1])),
        taken["dtype"],
        tuple(record["classes"]),
        lambda images: run(images)["probabilities"],
    )
