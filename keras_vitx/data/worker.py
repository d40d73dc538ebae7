"""Batches of NumPy arrays, made by worker processes; nothing here imports Keras."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.erasing import draw_erasing, erase_box
from keras_vitx.data.augmentation.mixing import Mixing, check_mixable, soft_labels
from keras_vitx.data.augmentation.windows import Window
from keras_vitx.data.images import fit_to_model, normalize, with_channels
from keras_vitx.data.sources.dataset import Split
from keras_vitx.preprocessing import ModelInput


class Batch(NamedTuple):
    """A batch as passed from a worker to the training process.

    `images` are float32, normalized; or uint8, with `boxes`, int32 (batch, 5), yet to be erased
    (`draw_erasing`). `errors` has the id and error of each image that could not be decoded.
    """

    images: np.ndarray
    labels: Any
    weights: np.ndarray | None = None
    boxes: np.ndarray | None = None
    errors: tuple[tuple[Any, str], ...] = ()


@dataclass(eq=False)
class Loader:
    """A function of an epoch and an index that returns a `Batch` of a split.

    With `as_uint8`, images are not normalized. Up to `budget` bytes of decoded images are cached.
    """

    split: Split
    spec: ModelInput
    batch_size: int
    strict: bool = field(default=False, kw_only=True)

    as_uint8, budget = False, 0

    def __post_init__(self):
        self.cache: dict[int, Any] = {}

    def __getstate__(self):
        return vars(self) | {"cache": {}}  # Each process has its own.

    def decode(self, position: int) -> Any:
        """Return an image after the evaluation transform, uint8, at the input size."""
        return fit_to_model(self.split.images[position], self.spec)

    def image(self, position: int) -> Any:
        """Return the result of `decode`, cached if possible."""
        image = self.cache.get(position)
        if image is None:
            image = self.decode(position)
            # Pillow uses four bytes per pixel.
            size = image.nbytes if isinstance(image, np.ndarray) else 4 * math.prod(image.size)
            if size <= self.budget:
                self.budget -= size
                self.cache[position] = image
        return image

    def read(self, positions: np.ndarray) -> tuple[dict[int, Any], tuple[tuple[Any, str], ...]]:
        """Return images by row, and errors; an OSError if all fail, or any with `strict`."""
        images, errors = {}, {}
        for row, position in enumerate(positions):
            try:
                images[row] = self.image(position)
            except OSError as error:
                if self.strict:
                    raise
                errors[self.split.id(position)] = str(error)
        if not images:
            raise OSError(f"no image of a batch can be decoded: {next(iter(errors.values()))}")
        return images, tuple(errors.items())

    def normalize(self, images: np.ndarray, boxes: np.ndarray | None = None) -> np.ndarray:
        """Return the input of the model from uint8 images, with boxes of noise."""
        batch = np.empty(images.shape, "float32")
        for i, image in enumerate(images):  # One by one, to stay in the CPU's cache.
            normalize(image, self.spec.preprocessing, batch[i])
            if boxes is not None:
                erase_box(batch[i], boxes[i])
        return batch


@dataclass(eq=False)
class EvaluationLoader(Loader):
    """Images in order, with the evaluation transform, without those that can't be decoded.

    `soft` is the number of classes for soft labels, as for mixed training images.
    """

    pad: bool = False
    soft: int | None = None

    def __len__(self) -> int:
        return -(-self.split.size // self.batch_size)

    def __call__(self, epoch: int, index: int) -> Batch:
        positions = np.arange(self.split.size)[index * self.batch_size :][: self.batch_size]
        images, errors = self.read(positions)
        labels, weights = self.split.labels[positions[list(images)]], None
        images = np.stack(list(images.values()))
        if self.soft is not None:
            labels = soft_labels(labels, self.soft)
        if self.pad:
            missing = self.batch_size - len(images)
            images, labels, weights = (
                np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
                for array in (images, labels, np.ones(len(images), "float32"))
            )
        return Batch(images if self.as_uint8 else self.normalize(images), labels, weights,
                     errors=errors)  # fmt: skip


@dataclass(eq=False)
class TrainingLoader(Loader):
    """Shuffled, augmented and mixed images, in full batches only; arguments as in `pipelines`.

    An image that can't be decoded is replaced by another of its batch. `classes` is required to mix
    integer labels; with `weights` (n,), images are drawn with replacement.
    """

    augmentation: Augmentation | None = None
    mixing: Mixing | None = None
    seed: int = 0
    classes: int | None = None
    targets: Callable[[Any, Window], np.ndarray] | None = None
    weights: np.ndarray | None = None

    def __post_init__(self):
        super().__post_init__()
        self.batch_size = min(self.batch_size, self.split.size)
        self.relabels = getattr(self.targets, "relabel", False)
        if self.augmentation is not None:
            self.augmentation.check(self.spec.channels, self.targets is not None)
        if self.mixing is not None:
            check_mixable(self.split.labels, self.classes)
            self.mixing.check_batch(self.batch_size)
            if self.targets is not None and self.mixing.cutmix and not self.relabels:
                raise ValueError(
                    f"`cutmix` must be 0 with `targets`. Received: {self.mixing.cutmix}."
                )

    def __len__(self) -> int:
        return self.split.size // self.batch_size

    def decode(self, position: int) -> Any:
        """Return an image before augmentation, at the input size unless it will be cropped."""
        images, crop = self.split.images, self.augmentation and self.augmentation.crop
        if crop is None:
            return super().decode(position)
        if crop == "shift":
            return fit_to_model(images[position], self.spec, 1.0)
        if hasattr(images, "picture") and self.spec.channels == 3:
            return images.picture(position)  # Cheaper to crop than an array.
        return with_channels(images[position], self.spec.channels)

    def positions(self, epoch: int, index: int) -> np.ndarray:
        """Return the positions of the images of a batch in the split, (batch,)."""
        repeats = self.augmentation.repeats if self.augmentation else 1
        rows = np.arange(index * self.batch_size, (index + 1) * self.batch_size) // repeats
        if self.weights is None:
            return order(self.seed, epoch, self.split.size)[rows]
        random = np.random.default_rng((self.seed, epoch))
        probabilities = self.weights / self.weights.sum()
        return random.choice(self.split.size, self.split.size, p=probabilities)[rows]

    def __call__(self, epoch: int, index: int, shard: int = 0, num_shards: int = 1) -> Batch:
        """Return batch `index` of an epoch, or one of its `num_shards` (`shard_of_batch`)."""
        positions = self.positions(epoch, index)
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        seeds = random.integers(2**63, size=len(positions))
        rows = shard_of_batch(len(positions), shard, num_shards)
        positions, seeds = positions[rows], seeds[rows]
        decoded, errors = self.read(positions)
        rows = [i if i in decoded else list(decoded)[i % len(decoded)] for i in range(len(seeds))]
        positions, seeds = positions[rows], seeds[rows]
        images, windows, boxes = self.augment([decoded[row] for row in rows], seeds)

        labels: Any = self.split.labels[positions]
        if self.mixing is not None:
            labels = soft_labels(labels, self.classes)
        if self.targets is not None:
            pairs = [(self.split.id(i), one) for i, one in zip(positions, windows, strict=True)]
            if self.relabels:
                labels = np.stack([self.targets.of_image(*pair) for pair in pairs])
            labels = {"head": labels, "aux_head": np.stack([self.targets(*pair) for pair in pairs])}
        if self.mixing is not None:
            images, labels = self.mixing(images, labels, random, shard, num_shards)
        if not self.as_uint8:
            images, boxes = self.normalize(images, boxes), None
        return Batch(images, labels, boxes=boxes, errors=errors)

    def augment(
        self, images: Sequence[Any], seeds: np.ndarray
    ) -> tuple[np.ndarray, Sequence[Window], np.ndarray | None]:
        """Return augmented uint8 images, their windows, and the boxes to erase."""
        augmentation, size, mean = self.augmentation, self.spec.size, self.spec.preprocessing.mean
        boxes, windows = None, [Window()] * len(images)
        if augmentation is not None:
            randoms = [np.random.default_rng(seed) for seed in seeds]
            images, windows = augmentation.batch(images, size, randoms, mean)
            if augmentation.erasing:
                boxes = [draw_erasing(*size, augmentation.erasing, random) for random in randoms]
                boxes = np.array(boxes, "int32")
        return np.stack(images), windows, boxes


def batch_of_step(load_batch: Callable, batches: int, shard: tuple[int, ...], step: int) -> Any:
    """Return the batch of a step, where every epoch has `batches` steps."""
    return load_batch(*divmod(step, batches), *shard)


def shard_of_batch(count: int, shard: int, num_shards: int) -> np.ndarray:
    """Return the indices of the images of one of `num_shards` num_shards of a batch, in ascending
    order.

    Shares of even size contain pairs of images i and `count - 1 - i`, which `Mixing` mixes.
    """
    size = count // num_shards
    if size % 2:
        return np.arange(shard * size, (shard + 1) * size)
    first = np.arange(shard * size // 2, (shard + 1) * size // 2)
    return np.concatenate([first, count - 1 - first[::-1]])


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)
