"""Reading many image files, batch by batch."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_vitx.data.preprocessing import decode_image, fit_to_model, normalize
from keras_vitx.preprocessing import ModelInput


class FileBatch(NamedTuple):
    """The images of up to `batch_size` files.

    Attributes:
        paths: The decoded files.
        images: float32 (len(paths), height, width, channels), the input of the
            model; empty if no file was decoded.
        errors: The error of each other file, which names the file.
    """

    paths: list[Path]
    images: np.ndarray
    errors: dict[Path, OSError]


def batches_of_files(
    paths: Sequence[str | os.PathLike], model, batch_size: int = 32
) -> Iterator[FileBatch]:
    """Decode and preprocess image files as `preprocess_input` does, batch by batch.

    At any time, one batch at the model's input size and one original image per core are
    in memory. A file that can't be decoded does not raise; its error is in the batch.

    Args:
        paths: Image files.
        model: A model of keras_vitx.
        batch_size: Number of files per batch; the last batch may be smaller.

    Raises:
        ValueError: if `batch_size` is not a positive integer, or if the model lacks
            the attributes that `preprocess_input` needs.
    """
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"`batch_size` must be an integer, at least 1. Received: {batch_size!r}.")
    return _batches([Path(path) for path in paths], ModelInput.of(model), batch_size)


def _batches(paths: list[Path], spec: ModelInput, batch_size: int) -> Iterator[FileBatch]:
    def image_or_error(path: Path) -> np.ndarray | OSError:
        try:
            image = fit_to_model(decode_image(path), spec, spec.preprocessing.crop_ratio)
        except OSError as error:
            return error
        return normalize(image, spec.preprocessing)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(paths), batch_size):
            batch = paths[start : start + batch_size]
            found = dict(zip(batch, pool.map(image_or_error, batch), strict=True))
            errors = {path: e for path, e in found.items() if isinstance(e, OSError)}
            images = np.empty((len(found) - len(errors), *spec.size, spec.channels), "float32")
            good = [path for path in found if path not in errors]
            for i, path in enumerate(good):
                images[i] = found[path]
            yield FileBatch(good, images, errors)
