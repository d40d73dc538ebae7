"""Batches of images and masks, at the size of a model."""

from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.data.augmentation import jittered
from keras_vitx.data.batches import Batches
from keras_vitx.data.preprocessing import normalize, resize, with_channels
from keras_vitx.data.worker import order
from keras_vitx.preprocessing import ModelInput
from keras_vitx.segmentation.sources import IGNORED, MaskedImages

MAXIMUM_SHARE = 0.75
"""Share of the labeled pixels of a crop above which one class is too common."""
TRIES = 10


class TrainingCrops(Batches):
    """Shuffled random crops of rescaled and mirrored images, in full batches only.

    As in the public training of UperNet: each image is resized, with its aspect ratio, so that
    its shorter side is that of the crop times a random factor; of ten random crops, the first
    is taken in which no class has more than 75 % of the labeled pixels. Smaller images are
    padded, with the mean color and ignored labels. Masks are never interpolated.

    Batch i of epoch e is a function of (seed, e, i) alone.

    Args:
        masked: The images and their masks.
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
        masked: MaskedImages,
        model: Any,
        classes: int,
        batch_size: int = 16,
        scales: tuple[float, float] = (0.5, 2.0),
        flip: bool = True,
        jitter: float = 0.0,
        seed: int = 0,
    ):
        super().__init__(self._batch)
        if not 0 < scales[0] <= scales[1]:
            raise ValueError(f"`scales` must be a range above 0. Received: {scales!r}.")
        if not 0 <= jitter < 1:
            raise ValueError(f"`jitter` must be in 0..1. Received: {jitter!r}.")
        self.masked, self.spec, self.classes = masked, ModelInput.of(model), classes
        self.batch_size, self.seed = min(batch_size, masked.size), seed
        self.scales, self.flip, self.jitter = scales, flip, jitter

    def __len__(self) -> int:
        return self.masked.size // self.batch_size

    def positions(self, epoch: int, index: int) -> np.ndarray:
        """Return the positions of the images of a batch, (batch,)."""
        start = index * self.batch_size
        return order(self.seed, epoch, self.masked.size)[start : start + self.batch_size]

    def ids(self, epoch: int, index: int) -> list:
        """Return the names of the images of a batch."""
        return [self.masked.names[i] for i in self.positions(epoch, index)]

    def _batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        pairs = (self.masked.pair(i, self.classes) for i in self.positions(epoch, index))
        images, masks = zip(*(self._crop(*pair, random) for pair in pairs), strict=True)
        return np.stack(images), np.stack(masks)

    def _crop(self, image, mask, random):
        height, width = self.spec.size
        ratio = random.uniform(*self.scales) * min(height, width) / min(mask.shape)
        size = tuple(max(1, round(side * ratio)) for side in mask.shape)
        image = resize(with_channels(image, self.spec.channels), size, Image.Resampling.BILINEAR)
        mask = resize_mask(mask, size)
        for _ in range(TRIES):
            top = random.integers(max(size[0] - height, 0) + 1)
            left = random.integers(max(size[1] - width, 0) + 1)
            window = slice(top, top + height), slice(left, left + width)
            labels, counts = np.unique(mask[window], return_counts=True)
            counts = counts[labels != IGNORED]
            if len(counts) and counts.max() < MAXIMUM_SHARE * counts.sum():
                break
        image, mask = image[window], mask[window]
        if self.flip and random.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        if self.jitter:
            image = jittered(np.ascontiguousarray(image), self.jitter, random)
        pixels = normalize(np.ascontiguousarray(image), self.spec.preprocessing)
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
        masked: The images and their masks.
        model: The model, or any object with its `input_shape` and `preprocessing`.
        classes: Number of classes.
        batch_size: Images per batch; the last one may be smaller.
    """

    def __init__(self, masked: MaskedImages, model: Any, classes: int, batch_size: int = 16):
        super().__init__(self._batch)
        self.masked, self.spec = masked, ModelInput.of(model)
        self.classes, self.batch_size = classes, batch_size

    def __len__(self) -> int:
        return -(-self.masked.size // self.batch_size)

    def _batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        positions = range(self.masked.size)[index * self.batch_size :][: self.batch_size]
        pairs = [self.masked.pair(position, self.classes) for position in positions]
        size = self.spec.size
        images = [to_model(image, self.spec, size) for image, _ in pairs]
        return np.stack(images), np.stack([resize_mask(mask, size) for _, mask in pairs])


def to_model(image: np.ndarray, spec: ModelInput, size: tuple[int, int]) -> np.ndarray:
    """Return a uint8 image (height, width, channels) resized to `size` and normalized."""
    image = resize(with_channels(image, spec.channels), tuple(size), Image.Resampling.BILINEAR)
    return normalize(image, spec.preprocessing)


def resize_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize a mask (height, width) to the nearest pixels, so that no label is made up."""
    rows, columns = (
        np.minimum(((np.arange(new) + 0.5) * old / new).astype(int), old - 1)
        for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]
