"""Batches of NumPy arrays, as worker processes make them; nothing here imports Keras."""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.erasing import draw_erasing, erase_box
from keras_vitx.data.augmentation.mixing import Mixing, check_mixable, soft_labels
from keras_vitx.data.augmentation.windows import Window
from keras_vitx.data.preprocessing import fit_to_model, normalize, with_channels
from keras_vitx.data.sources.splits import Split
from keras_vitx.preprocessing import ModelInput

IN_MEMORY_BYTES = 512 * 2**20
"""Decoded images of a split are kept in memory up to this size."""


class Batch(NamedTuple):
    """A batch of images as it crosses from a worker to the process that trains.

    Attributes:
        images: uint8 (batch, height, width, channels); or float32, normalized and erased.
        labels: An array, or a dictionary of arrays.
        weights: float32 (batch,), or None.
        boxes: int32 (batch, 5), the boxes to erase (`erasing.draw_erasing`), or None.
        errors: The id and the error of each image that could not be decoded.
    """

    images: np.ndarray
    labels: Any
    weights: np.ndarray | None = None
    boxes: np.ndarray | None = None
    errors: tuple[tuple[Any, str], ...] = ()


class Maker:
    """A function of an epoch and an index that returns a batch of a split.

    Args:
        split: The images and their labels.
        spec: Size, channels and preprocessing of the model's input.
        batch_size: Number of images per batch.
        strict: Whether an image that can't be decoded is an error.
        on_device: Whether images stay uint8, to be normalized on the device.
        budget: Bytes of decoded images to keep in memory.
    """

    def __init__(
        self,
        split: Split,
        spec: ModelInput,
        batch_size: int,
        strict: bool = False,
        on_device: bool = False,
        budget: int = IN_MEMORY_BYTES,
    ):
        self.split, self.spec, self.batch_size = split, spec, batch_size
        self.strict, self.on_device, self.budget = strict, on_device, budget

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        raise NotImplementedError

    def __call__(self, epoch: int, index: int) -> Batch:
        raise NotImplementedError

    @functools.cached_property
    def images(self) -> "Cached":
        """The images with the evaluation transform, at the size of the model's input."""
        crop_ratio = self.spec.preprocessing.crop_ratio
        transform = functools.partial(fit_to_model, spec=self.spec, crop_ratio=crop_ratio)
        return Cached(self.split.images, transform, self.budget)

    def read(self, positions: Sequence[int]) -> tuple[list, tuple[tuple[Any, str], ...]]:
        """Return the images at positions, None for those that can't be decoded, and the errors.

        Raises:
            OSError: if none can be decoded; or one, with `strict`.
        """
        images, errors = [], {}
        for position in positions:
            try:
                images.append(self.images[position])
            except OSError as error:
                if self.strict:
                    raise
                images.append(None)
                errors[self.split.id(position)] = str(error)
        if len(errors) and all(image is None for image in images):
            raise OSError(f"no image of a batch can be decoded: {next(iter(errors.values()))}")
        return images, tuple(errors.items())

    def normalized(self, images: np.ndarray, boxes: np.ndarray | None = None) -> np.ndarray:
        """Return uint8 images as the input of the model, with boxes of noise."""
        batch = np.empty(images.shape, "float32")
        for i, image in enumerate(images):  # One by one, they stay in the cache.
            normalize(image, self.spec.preprocessing, batch[i])
            if boxes is not None:
                erase_box(batch[i], boxes[i])
        return batch

    def __getstate__(self):
        # Each process has its own images in memory, and its own layers of keras-cv.
        return {k: v for k, v in vars(self).items() if k not in ("images", "keras_cv")}


class TrainingMaker(Maker):
    """Shuffled, augmented and mixed images, in full batches only; see `TrainingBatches`."""

    def __init__(
        self,
        split: Split,
        spec: ModelInput,
        batch_size: int,
        augmentation: Augmentation | None = None,
        mixing: Mixing | None = None,
        seed: int = 0,
        *,
        classes: int | None = None,
        targets: Callable[[Any, Window], np.ndarray] | None = None,
        weights: np.ndarray | None = None,
        **options: Any,
    ):
        super().__init__(split, spec, min(batch_size, split.size), **options)
        self.augmentation, self.mixing = augmentation, Mixing.of(mixing)
        self.seed, self.classes, self.targets, self.weights = seed, classes, targets, weights
        if augmentation is not None:
            augmentation.check_channels(spec.channels)
            if augmentation.by == "keras_cv":
                if targets is not None:
                    raise ValueError('`by` must be "pillow" where there are targets.')
                self.on_device = False
                _ = self.keras_cv  # A missing package is an error here.
        if self.mixing is not None:
            check_mixable(split.labels, classes)
            self.mixing.check_batch(self.batch_size)
            if targets is not None and self.mixing.cutmix:
                raise ValueError(
                    "`cutmix` must be 0 where targets follow the window of an image, which CutMix "
                    f"can't mix. Received: {self.mixing.cutmix}."
                )

    def __len__(self) -> int:
        return self.split.size // self.batch_size

    @functools.cached_property
    def keras_cv(self) -> Any:
        """The layers of keras-cv, if they augment; else None."""
        if self.augmentation is None or self.augmentation.by != "keras_cv":
            return None
        from keras_vitx.data.augmentation.keras_cv import KerasCV

        return KerasCV(self.augmentation, self.spec.size)

    @functools.cached_property
    def images(self) -> "Cached":
        """The images before augmentation, at the input size unless a window is cropped."""
        crop = self.augmentation and self.augmentation.crop
        if crop is None:
            return super().images
        if crop == "shift":
            transform = functools.partial(fit_to_model, spec=self.spec, crop_ratio=1.0)
        else:
            pictures = getattr(self.split.images, "picture", None)
            if pictures and self.spec.channels == 3 and self.keras_cv is None:
                return Cached(self.split.images, None, self.budget, pictures)
            transform = functools.partial(with_channels, channels=self.spec.channels)
        return Cached(self.split.images, transform, self.budget)

    def positions(self, epoch: int, index: int) -> np.ndarray:
        """Return the positions in the split of the images of a batch, (batch,)."""
        repeats = self.augmentation.repeats if self.augmentation else 1
        rows = np.arange(index * self.batch_size, (index + 1) * self.batch_size) // repeats
        if self.weights is None:
            return order(self.seed, epoch, self.split.size)[rows]
        random = np.random.default_rng((self.seed, epoch))
        shares = self.weights / self.weights.sum()
        return random.choice(self.split.size, self.split.size, p=shares)[rows]

    def __call__(self, epoch: int, index: int, share: int = 0, shares: int = 1) -> Batch:
        """Return batch `index` of an epoch, or one of several shares of it (`share_of_batch`)."""
        positions = self.positions(epoch, index)
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        seeds = random.integers(2**63, size=len(positions))
        if shares > 1:
            own = share_of_batch(len(positions), share, shares)
            positions, seeds = positions[own], seeds[own]
        images, errors = self.read(positions)
        if errors:  # Another image takes the place.
            read = [i for i, image in enumerate(images) if image is not None]
            taken = [i if images[i] is not None else read[i % len(read)] for i in range(len(seeds))]
            images, positions, seeds = [images[i] for i in taken], positions[taken], seeds[taken]
        if self.keras_cv is not None:
            self.keras_cv.start(int(seeds[0] % 2**31))
        augmented = [
            self._augmented(image, np.random.default_rng(seed))
            for image, seed in zip(images, seeds, strict=True)
        ]
        images, windows, boxes = zip(*augmented, strict=True)
        images = np.stack(images)

        labels: Any = self.split.labels[positions]
        if self.mixing is not None:
            labels = soft_labels(labels, self.classes)
        if self.targets is not None:
            pairs = zip(positions, windows, strict=True)
            targets = [self.targets(self.split.id(i), window) for i, window in pairs]
            labels = {"head": labels, "aux_head": np.stack(targets)}
        if self.mixing is not None:
            images, labels = self.mixing(images, labels, random, share, shares)
        erased = self.augmentation and self.augmentation.erasing and self.keras_cv is None
        boxes = np.array(boxes, "int32") if erased else None
        if self.keras_cv is not None:
            batch = self.normalized(images)
            return Batch(np.stack([self.keras_cv.erase(image) for image in batch]), labels,
                         errors=errors)  # fmt: skip
        if not self.on_device:
            images, boxes = self.normalized(images, boxes), None
        return Batch(images, labels, boxes=boxes, errors=errors)

    def _augmented(self, image: Any, random: np.random.Generator) -> tuple:
        """Return an augmented uint8 image, its window, and the box to erase."""
        augmentation, size = self.augmentation, self.spec.size
        if augmentation is None:
            return image, Window(), None
        if self.keras_cv is not None:
            return self.keras_cv.pixels(image), Window(), None
        image, window = augmentation.pixels(image, size, random, self.spec.preprocessing.mean)
        return image, window, draw_erasing(*size, augmentation.erasing, random)


class EvaluationMaker(Maker):
    """Images in order, with the evaluation transform; see `EvaluationBatches`."""

    def __init__(
        self,
        split: Split,
        spec: ModelInput,
        batch_size: int,
        pad: bool = False,
        soft: int | None = None,
        **options: Any,
    ):
        super().__init__(split, spec, batch_size, **options)
        self.pad, self.soft = pad, soft

    def __len__(self) -> int:
        return -(-self.split.size // self.batch_size)

    def __call__(self, epoch: int, index: int) -> Batch:
        positions = np.arange(self.split.size)[index * self.batch_size :][: self.batch_size]
        images, errors = self.read(positions)
        positions = [p for p, image in zip(positions, images, strict=True) if image is not None]
        images = np.stack([image for image in images if image is not None])
        labels, weights = self.split.labels[positions], None
        if self.soft is not None:
            labels = soft_labels(labels, self.soft)
        if self.pad:
            missing = self.batch_size - len(images)
            images, labels, weights = (
                np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
                for array in (images, labels, np.ones(len(images), "float32"))
            )
        images = images if self.on_device else self.normalized(images)
        return Batch(images, labels, weights, errors=errors)


class Cached:
    """Images transformed when they are used, and kept up to `budget` bytes in total.

    Args:
        images: The images.
        transform: A function of an image, or None.
        budget: Bytes to keep; transformed images of an array are not kept if they are the same.
        read: A function of an index that returns the image, in place of `images[index]`.
    """

    def __init__(
        self,
        images: Sequence[np.ndarray],
        transform: Callable[[np.ndarray], np.ndarray] | None,
        budget: int,
        read: Callable[[int], Any] | None = None,
    ):
        self.images, self.transform, self.left = images, transform, budget
        self.read = read or images.__getitem__
        self.kept: dict[int, Any] = {}
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        image = self.kept.get(index)
        if image is None:
            original = self.read(index)
            image = self.transform(original) if self.transform else original
            in_memory = isinstance(self.images, np.ndarray) and np.shares_memory(image, original)
            # Pillow keeps four bytes per pixel.
            size = image.nbytes if isinstance(image, np.ndarray) else 4 * math.prod(image.size)
            with self.lock:
                if not in_memory and size <= self.left and index not in self.kept:
                    self.left -= size
                    self.kept[index] = image
        return image


def batch_of_step(make: Callable, batches: int, share: tuple[int, ...], step: int) -> Any:
    """Return the batch of a step, counted over epochs of `batches` batches."""
    return make(*divmod(step, batches), *share)


def share_of_batch(count: int, share: int, shares: int) -> np.ndarray:
    """Return the indices of the images of a share of a batch, in ascending order.

    If the shares have an even number of images, the one with image i has image
    `count - 1 - i`, too, with which `Mixing` mixes it.

    Args:
        count: Number of images in the batch, a multiple of `shares`.
        share: Index of the share.
        shares: Number of shares.
    """
    size = count // shares
    if size % 2:
        return np.arange(share * size, (share + 1) * size)
    first = np.arange(share * size // 2, (share + 1) * size // 2)
    return np.concatenate([first, count - 1 - first[::-1]])


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)
