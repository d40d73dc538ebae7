"""Batches of images and masks, at the input size of a model."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from PIL import Image

from keras_vitx.annotations import Range, check_argument
from keras_vitx.data import Pipelines
from keras_vitx.data.augmentation import jitter_colors
from keras_vitx.data.images import normalize, resize, with_channels
from keras_vitx.data.loading import Batches, import_grain, order
from keras_vitx.preprocessing import ModelInput
from keras_vitx.segmentation.evaluate import to_model
from keras_vitx.segmentation.masks import MaskedImages, load_dataset, resize_mask
from keras_vitx.segmentation.metrics import IGNORED

MAXIMUM_SHARE = 0.75
"""Maximum fraction of one class in the labeled pixels of a crop."""
TRIES = 10


def pipelines(
    source: Any,
    model: Any,
    batch_size: int = 16,
    *,
    scales: tuple[float, float] = (0.5, 2.0),
    flip: bool = True,
    jitter: float = 0.0,
    seed: int = 0,
) -> Pipelines:
    """Return the training and validation batches of images with masks, for `fit`.

    Training images are shuffled random crops, in full batches only, as in the public training of
    UperNet: the shorter side of the image is resized to that of the crop times a random factor, and
    the first of ten random crops is used in which no class has more than 75 % of the labeled
    pixels. Smaller images are padded with the mean color and ignored labels. Masks are never
    interpolated. Batch i of epoch e is a function of (seed, e, i) alone.

    Validation images and masks are in order, both resized to the model's input size;
    `keras_vitx.segmentation.evaluate` uses the original size of the masks instead.

    Args:
        source: As in `load_dataset`.
        model: A model with logits `(batch, height, width, classes)` and `preprocessing`.
        batch_size: Images per batch; in training, at most the number of images.
        scales: Range of the random factor.
        flip: Whether half of the training images are mirrored.
        jitter: Maximum random change of brightness, contrast and saturation, as a factor.
        seed: Seed of the order and of the augmentation.

    Returns:
        A `keras_vitx.data.Pipelines` of float32 images (batch, height, width, channels) and int32
        masks (batch, height, width).

    Raises:
        ValueError: if an argument is out of range, or the source is invalid.
    """
    dataset, classes = load_dataset(source), model.output_shape[-1]
    train = TrainingCrops(dataset.train, model, classes, batch_size, scales, flip, jitter, seed)
    validation = dataset.validation
    if validation is not None:
        validation = EvaluationPairs(validation, model, classes, batch_size)
    return Pipelines(train, validation, dataset.class_names)


class EvaluationPairs(Batches):
    """The validation batches of `pipelines`, of masked images with `classes` classes."""

    def __init__(
        self, masked: MaskedImages, model: Any, classes: int, batch_size: int = 16, seed: int = 0
    ):
        super().__init__(None)
        self.masked, self.spec = masked, ModelInput.of(model)
        self.classes, self.batch_size, self.seed = classes, batch_size, seed

    def __len__(self) -> int:
        return -(-self.masked.size // self.batch_size)

    def dataset(self) -> Any:
        steps = import_grain().MapDataset.range(sys.maxsize)
        return steps.map(lambda step: self.batch(*divmod(step, len(self))))

    def batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        pairs = (self.masked.pair(i, self.classes) for i in self.positions(epoch, index))
        images, masks = zip(*(self.fit(*pair, random) for pair in pairs), strict=True)
        return np.stack(images), np.stack(masks)

    def positions(self, epoch: int, index: int) -> Sequence[int]:
        return self.order(epoch)[index * self.batch_size :][: self.batch_size]

    def ids(self, epoch: int, index: int) -> list:
        return [self.masked.names[i] for i in self.positions(epoch, index)]

    def order(self, epoch: int) -> Sequence[int]:
        return range(self.masked.size)

    def fit(self, image: np.ndarray, mask: np.ndarray, random: Any) -> tuple[np.ndarray, ...]:
        """Return an image and its mask at the input size, the image normalized."""
        size = self.spec.size
        return to_model(image, self.spec, size), resize_mask(mask, size)


class TrainingCrops(EvaluationPairs):
    """The training batches of `pipelines`, of masked images with `classes` classes."""

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
        super().__init__(masked, model, classes, min(batch_size, masked.size), seed)
        check_argument("scales", tuple(scales), Annotated[Range, "(0, inf)"])
        check_argument("jitter", jitter, Annotated[float, "[0, 1)"])
        self.scales, self.flip, self.jitter = scales, flip, jitter

    def __len__(self) -> int:
        return self.masked.size // self.batch_size

    def order(self, epoch: int) -> np.ndarray:
        return order(self.seed, epoch, self.masked.size)

    def fit(self, image: np.ndarray, mask: np.ndarray, random: Any) -> tuple[np.ndarray, ...]:
        """Return a random crop, normalized, and its mask."""
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
        image = np.ascontiguousarray(image)
        if self.jitter:
            image = jitter_colors(image, self.jitter, random)
        border = [(0, height - mask.shape[0]), (0, width - mask.shape[1])]
        pixels = np.pad(normalize(image, self.spec.preprocessing), [*border, (0, 0)])
        return pixels, np.pad(mask, border, constant_values=IGNORED)
