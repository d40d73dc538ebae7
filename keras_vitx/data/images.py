"""The evaluation transform: from image files and arrays to the input of a model."""

import io
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Num, UInt8
from PIL import Image

from keras_vitx.checks import check
from keras_vitx.data.decoding import as_mode, decode_image
from keras_vitx.pixels import Pixels
from keras_vitx.preprocessing import (
    MAX_VALUES,
    ModelInput,
    Preprocessing,
    check_levels,
    scaled_size,
)

LONG = 128
"""Images longer than this many crops are cut before resizing; others match timm's exactly."""


def preprocess_input(images, model) -> Float32[np.ndarray, "n height width channels"]:
    """Return the result of `keras_vitx.preprocess_input`, for a model, not its name."""
    spec = ModelInput.of(model)
    pixels = np.stack([fit_to_model(pixels_of(image), spec) for image in images_of(images)])
    return normalize(pixels, spec.preprocessing)


def images_of(images) -> list:
    """Return the images that `preprocess_input` takes, one or several, as a list."""
    if isinstance(images, (tuple, list)) and not (images and isinstance(images[0], list)):
        return list(images)
    if not _is_encoded(images) and not isinstance(images, Image.Image):
        images = _as_levels(np.asarray(images))  # Of JSON, too.
        if images.ndim == 4:
            return list(images)
    return [images]


def _is_encoded(image) -> bool:
    """Return whether an image is a file: a path, the content, both as a dict, or an open file."""
    if isinstance(image, dict):
        return bool(image.keys() & {"bytes", "path"})
    return isinstance(image, (str, os.PathLike, bytes, bytearray, io.IOBase))


def pixels_of(image) -> Pixels:
    """Convert an image of any type that `preprocess_input` accepts."""
    if _is_encoded(image):
        is_content = isinstance(image, (bytes, bytearray))
        return decode_image(io.BytesIO(image) if is_content else image)
    image = np.asarray(as_mode(image, "RGB") if isinstance(image, Image.Image) else image)
    rule = "`images` must be arrays (height, width[, channels]) or (n, height, width, channels)."
    return _as_levels(with_channel_axis(image, 3, rule))


def with_channel_axis(images: np.ndarray, axes: int, rule: str) -> np.ndarray:
    """Return images with an axis of channels; a ValueError of the `rule` for other `axes`."""
    images = images[..., None] if images.ndim == axes - 1 else images
    check(images.ndim == axes, rule, images.shape)
    return images


def _as_levels(images: Num[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Return numbers in 0..255, or floats in 0..1 if none is above 1, as uint8."""
    if images.dtype == np.uint8 or not images.size:
        return images
    rule = "`images` must be paths, contents of files, open files, PIL images or arrays, or lists."
    check(images.dtype.kind not in "SUO", rule, images)
    check_levels(images.dtype, images.min(), images.max())
    in_unit = images.dtype.kind == "f" and images.max() <= 1
    return np.rint(images.astype("float32") * (255 if in_unit else 1)).astype("uint8")


class FileBatch(NamedTuple):
    """A batch of `batches_of_files`."""

    paths: list[Path]
    images: Float32[np.ndarray, "n height width channels"]
    errors: dict[Path, OSError]


def batches_of_files(
    paths: Sequence[str | os.PathLike], model, batch_size: int = 32
) -> Iterator[FileBatch]:
    """Decode and preprocess image files as `preprocess_input` does, batch by batch.

    One batch at the model's input size and one original image per core are in memory at a time. A
    file that can't be decoded raises no error; its error is part of the batch.

    Args:
        paths: Image files.
        model: A model of keras_vitx.
        batch_size: Number of files per batch; the last batch may be smaller.

    Returns:
        An iterator of named tuples of `paths`, the decoded files; `images`, float32 (len(paths),
        height, width, channels), the input of the model; and `errors`, the error of each other
        file, which names it.
    """
    spec, paths = ModelInput.of(model, any_size=True), [Path(path) for path in paths]
    if None in spec.size:  # Each image keeps its own.
        batch_size = 1

    def image_or_error(path: Path) -> Float32[np.ndarray, "height width channels"] | OSError:
        try:
            return normalize(fit_to_model(decode_image(path), spec), spec.preprocessing)
        except OSError as error:
            return error

    def batches() -> Iterator[FileBatch]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(paths), batch_size):
                batch = paths[start : start + batch_size]
                results = list(zip(batch, pool.map(image_or_error, batch), strict=True))
                errors = {path: x for path, x in results if isinstance(x, OSError)}
                images = [x for path, x in results if path not in errors]
                shape = (0, *(side or 0 for side in spec.size), spec.channels)
                array = np.stack(images) if images else np.empty(shape, "float32")
                yield FileBatch([path for path in batch if path not in errors], array, errors)

    return batches()


def with_channels(
    image: UInt8[np.ndarray, "height width _"], channels: int
) -> UInt8[np.ndarray, "height width _"]:
    """Convert between gray and color, and drop transparency, to get `channels`."""
    if image.shape[-1] == 4 and channels in (1, 3):
        image = image[..., :3]
    if image.shape[-1] == channels:
        return image
    if image.shape[-1] == 1 and channels == 3:
        return np.repeat(image, 3, axis=-1)
    rule = f"`images` must be convertible to {channels} channels, on the last axis."
    check((image.shape[-1], channels) == (3, 1), rule, image.shape)
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))[..., None]


def fit_to_model(image: Pixels, spec: ModelInput, crop_ratio: float | None = None) -> Pixels:
    """Convert an image to a model's size and channels, and, if None, crop ratio."""
    image = with_channels(image, spec.channels)
    if None in spec.size:
        return image
    transform = spec.preprocessing
    crop_ratio = transform.crop_ratio if crop_ratio is None else crop_ratio
    return resize_and_crop(image, spec.size, crop_ratio, transform.interpolation)


def resize_and_crop(
    image: Pixels,
    size: tuple[int, int],
    crop_ratio: float = 1.0,
    interpolation: str = "bicubic",
) -> Pixels:
    """Resize an image to cover `size / crop_ratio`, and crop its center.

    Sizes are rounded as in timm's evaluation transform, to reproduce published accuracies. A crop
    ratio above 1 adds a black border. All filters except "nearest" are antialiased.
    """
    rule = f"`crop_ratio` must be at most the shorter side of {size}."
    check(crop_ratio <= min(size), rule, crop_ratio)
    # To limit memory for extreme aspect ratios, cut both ends of a long image equally.
    scale = min(side / target for side, target in zip(image.shape, size, strict=False))
    channels = image.shape[-1]
    long = min(LONG, MAX_VALUES * min(crop_ratio, 1) ** 2 / math.prod((*size, channels)))
    limits = [math.ceil(long * target * scale * max(crop_ratio, 1)) for target in size]
    top, left = (max(n - limit, 0) // 2 for n, limit in zip(image.shape, limits, strict=False))
    image = image[top : len(image) - top, left : image.shape[1] - left]
    scaled = tuple(map(int, scaled_size(np, np.float64(image.shape[:2]), size, crop_ratio)))
    rule = f"`size` and `crop_ratio` must resize images to at most {2 * MAX_VALUES:,} values."
    check(math.prod((*scaled, channels)) <= 2 * MAX_VALUES, rule, (size, crop_ratio))
    image = resize(image, scaled, Image.Resampling[interpolation.upper()])
    border = [max(target - side, 0) for side, target in zip(image.shape, size, strict=False)]
    if any(border):
        image = np.pad(image, [(width // 2, width - width // 2) for width in border] + [(0, 0)])
    top, left = (round((a - b) / 2) for a, b in zip(image.shape, size, strict=False))
    return image[top : top + size[0], left : left + size[1]]


def resize(image: Pixels, size: tuple[int, int], resample: Image.Resampling) -> Pixels:
    """Resize an image to `size`, whatever its channels."""
    if image.shape[:2] == size:
        return image
    if image.shape[-1] == 3:
        return np.asarray(Image.fromarray(image).resize(size[::-1], resample))
    # Pillow supports one and three channels; other images are resized channel by channel.
    planes = (Image.fromarray(np.ascontiguousarray(plane)) for plane in np.moveaxis(image, -1, 0))
    return np.stack([np.asarray(plane.resize(size[::-1], resample)) for plane in planes], axis=-1)


def normalize(
    images: UInt8[np.ndarray, "*shape"],
    preprocessing: Preprocessing,
    out: Float32[np.ndarray, "*shape"] | None = None,
) -> Float32[np.ndarray, "*shape"]:
    """Return (images / 255 - mean) / std, channels last, in `out` if given (contiguous)."""
    # By rows, since NumPy is slow if the last axis has three entries.
    width = images.shape[-2]
    out = np.empty(images.shape, "float32") if out is None else out
    if preprocessing.takes_pixels:  # Exactly, as a model of integers needs them.
        out[...] = images
        return out
    rows = out.reshape(*images.shape[:-2], -1)
    np.divide(images.reshape(rows.shape), np.float32(255), out=rows, dtype="float32")
    rows -= np.tile(np.float32(preprocessing.mean), width)
    rows /= np.tile(np.float32(preprocessing.std), width)
    return out
