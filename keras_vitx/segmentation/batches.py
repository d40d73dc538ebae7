"""Batches of images and masks, at the size of a model."""

from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.data.batches import Batches
from keras_vitx.data.preprocessing import normalize, resize, with_channels
from keras_vitx.data.worker import order
from keras_vitx.preprocessing import ModelInput
from keras_vitx.segmentation.sources import IGNORED, MaskedImages

MOST_OF_ONE = 0.75
"""Share of the labelled pixels of a crop above which one class is too common."""
TRIES = 10


class TrainingCrops(Batches):
    """Shuffled random crops of rescaled and mirrored images, in full batches only.

    As in the public training of UperNet: each image is resized, with its aspect ratio, so that
    its shorter side is that of the crop times a random factor; of ten random crops, the first
    is taken in which no class has more than 75 % of the labelled pixels. Smaller images are
    padded, with the mean colour and ignored labels. Masks are never interpolated.

    Batch i of epoch e is a function of (seed, e, i) alone.

    Args:
        part: The images and their masks.
        model: The model, or any object with its `input_shape` and `preprocessing`.
        classes: Number of classes.
        batch_size: Images per batch; with fewer images, it is their number.
        scales: Range of the random factor.
        flip: Whether half of the images are mirrored.
        jitter: Largest random change of brightness, contrast and saturation, as a factor.
        seed: Seed of the order and of the augmentation.
    """

    def __init__(
        self,
        part: MaskedImages,
        model: Any,
        classes: int,
        batch_size: int = 16,
        scales: tuple[float, float] = (0.5, 2.0),
        flip: bool = True,
        jitter: float = 0.0,
        seed: int = 0,
    ):
        super().__init__(self._make)
        if not 0 < scales[0] <= scales[1]:
            raise ValueError(f"`scales` must be a range above 0. Received: {scales!r}.")
        if not 0 <= jitter < 1:
            raise ValueError(f"`jitter` must be in 0..1. Received: {jitter!r}.")
        self.masked, self.facts = part, ModelInput.of(model)
        self.classes, self.seed = classes, seed
        self.batch_size = min(batch_size, part.size)
        self.scales, self.flip, self.jitter = scales, flip, jitter

    def __len__(self) -> int:
        return self.masked.size // self.batch_size

    def ids(self, epoch: int, index: int) -> list:
        """Return the names of the images of a batch."""
        return [self.masked.names[i] for i in self._positions(epoch, index)]

    def _make(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (batch, height, width, channels) and masks (batch, height, width)."""
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        crops = []
        for position in self._positions(epoch, index):
            image, mask = self.masked.pair(position, self.classes)
            crops.append(self._crop(with_channels(image, self.facts.channels), mask, random))
        images, masks = zip(*crops, strict=True)
        return np.stack(images), np.stack(masks)

    def _positions(self, epoch, index):
        start = index * self.batch_size
        return order(self.seed, epoch, self.masked.size)[start : start + self.batch_size]

    def _crop(self, image, mask, random):
        height, width = self.facts.size
        ratio = random.uniform(*self.scales) * min(height, width) / min(mask.shape)
        size = tuple(max(1, round(side * ratio)) for side in mask.shape)
        image = resize(image, size, Image.Resampling.BILINEAR)
        mask = resize_mask(mask, size)
        for _ in range(TRIES):
            top = random.integers(max(size[0] - height, 0) + 1)
            left = random.integers(max(size[1] - width, 0) + 1)
            window = slice(top, top + height), slice(left, left + width)
            labels, counts = np.unique(mask[window], return_counts=True)
            counts = counts[labels != IGNORED]
            if len(counts) and counts.max() < MOST_OF_ONE * counts.sum():
                break
        image, mask = image[window], mask[window]
        if self.flip and random.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        if self.jitter:
            image = _jittered(image, self.jitter, random)
        pixels = normalize(np.ascontiguousarray(image), self.facts.preprocessing)
        border = [(0, height - mask.shape[0]), (0, width - mask.shape[1])]
        return (
            np.pad(pixels, [*border, (0, 0)]),
            np.pad(mask, border, constant_values=IGNORED),
        )


class EvaluationPairs(Batches):
    """Images and masks in order, both resized to the model's size; masks to the nearest pixel.

    For `validation_data` of plain `fit`. `keras_vitx.segmentation.evaluate` compares with the
    masks at their own size instead.

    Args:
        part: The images and their masks.
        model: The model, or any object with its `input_shape` and `preprocessing`.
        classes: Number of classes.
        batch_size: Images per batch; the last one may be smaller.
    """

    def __init__(self, part: MaskedImages, model: Any, classes: int, batch_size: int = 16):
        super().__init__(self._make)
        self.masked, self.facts = part, ModelInput.of(model)
        self.classes, self.batch_size = classes, batch_size

    def __len__(self) -> int:
        return -(-self.masked.size // self.batch_size)

    def _make(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (batch, height, width, channels) and masks (batch, height, width)."""
        images, masks = [], []
        start = index * self.batch_size
        for position in range(start, min(start + self.batch_size, self.masked.size)):
            image, mask = self.masked.pair(position, self.classes)
            images.append(to_model(image, self.facts, self.facts.size))
            masks.append(resize_mask(mask, self.facts.size))
        return np.stack(images), np.stack(masks)


def to_model(image: np.ndarray, facts: ModelInput, size: tuple[int, int]) -> np.ndarray:
    """Return a uint8 image (height, width, channels) resized to `size` and normalized."""
    image = resize(with_channels(image, facts.channels), tuple(size), Image.Resampling.BILINEAR)
    return normalize(image, facts.preprocessing)


def resize_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize a mask (height, width) to the nearest pixels, so that no label is made up."""
    rows, columns = (
        np.minimum(((np.arange(new) + 0.5) * old / new).astype(int), old - 1)
        for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]


def _jittered(image, jitter, random):
    """Change contrast, saturation and brightness by random factors."""
    contrast, saturation, brightness = random.uniform(1 - jitter, 1 + jitter, 3)
    pixels = image.astype("float32")
    pixels = pixels.mean() + (pixels - pixels.mean()) * contrast
    grey = pixels.mean(axis=-1, keepdims=True)
    return np.clip((grey + (pixels - grey) * saturation) * brightness, 0, 255)
