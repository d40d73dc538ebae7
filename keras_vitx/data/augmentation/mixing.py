"""MixUp and CutMix, which mix pairs of images of a batch and their labels.

Zhang et al., 2018, and Yun et al., 2019, as timm's mode "batch", which DeiT and its successors use.
Keras 3.15's layers draw a coefficient per image, pair images at random, and can't alternate.
Label smoothing is part of the loss: it is linear in the label, and so commutes with mixing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Shaped

from keras_vitx.checks import (
    NonNegativeFloat,
    PositiveInt,
    Probability,
    check,
    check_fields,
    from_fields,
)
from keras_vitx.data.sources.dataset import is_regression

Images = Shaped[np.ndarray, "n height width channels"]


@dataclass(frozen=True)
class Mixing:
    r"""Mix each image of a batch with its counterpart in reverse order.

    With a coefficient $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$ per batch or group, MixUp
    returns $\lambda x + (1 - \lambda) x'$. CutMix replaces a box by that of $x'$; it has the
    image's aspect ratio, the area $1 - \lambda$ and a uniform center, and is clipped at the border;
    $\lambda$ becomes the remaining fraction of the area. The label is
    $\lambda y + (1 - \lambda) y'$.

    Attributes:
        mixup: $\alpha$ of MixUp; 0 turns it off.
        cutmix: $\alpha$ of CutMix; 0 turns it off.
        mixing_probability: Probability that a batch is mixed.
        switch: Probability of CutMix in a mixed batch, if both are on.
        group_size: Number of images that share a coefficient and a box; None for the whole batch.
            DeiT drew one per device, for 64 images each: `group_size=64`.

    Raises:
        ValueError: if a value is out of range; the message names the field.
    """

    mixup: NonNegativeFloat = 0.8
    cutmix: NonNegativeFloat = 1.0
    mixing_probability: Probability = 1.0
    switch: Probability = 0.5
    group_size: PositiveInt | None = None

    def __post_init__(self):
        check_fields(self)
        is_even = self.group_size is None or self.group_size % 2 == 0
        check(is_even, "`group_size` must be an even number.", self.group_size)

    @classmethod
    def of(cls, value: "Mixing | Mapping[str, Any] | None") -> "Mixing | None":
        """Return `value`, or a `Mixing` from a dictionary of its fields; None if both are off."""
        if isinstance(value, Mapping):
            value = from_fields(cls, value)
        is_known = value is None or isinstance(value, cls)
        check(is_known, "`mixing` must be a Mixing or None.", value)
        return value if value is not None and value.on else None

    @property
    def on(self) -> bool:
        """Whether any batch is mixed."""
        return bool((self.mixup or self.cutmix) and self.mixing_probability)

    def draw(
        self, size: tuple[int, int], random: np.random.Generator
    ) -> tuple[float, tuple[slice, slice] | None]:
        """Return a coefficient, and CutMix's box (rows, columns) or None, for images of `size`."""
        if not self.on or random.random() >= self.mixing_probability:
            return 1.0, None
        cut = bool(self.cutmix) and (not self.mixup or random.random() < self.switch)
        alpha = self.cutmix if cut else self.mixup
        lam = float(random.beta(alpha, alpha))
        if not cut:
            return lam, None
        box = []
        for side in size:
            center, length = int(random.integers(side)), int(side * math.sqrt(1 - lam))
            start = center - length // 2
            box.append(slice(max(start, 0), min(start + length, side)))
        cut_area = math.prod(extent.stop - extent.start for extent in box)
        return 1 - cut_area / math.prod(size), tuple(box)

    def check(self, labels: Shaped[np.ndarray, "n *classes"], classes: int, size: int) -> None:
        """Raise a ValueError if batches of `size` images of such labels can't be mixed."""
        rule = "`mixing` must be None for regression."
        check(not is_regression(labels), rule, f"labels {labels.dtype} {labels.shape}")
        last, largest = max(classes, 2) - 1, labels.max().item()
        check(labels.ndim == 2 or largest <= last, f"Labels must be in 0..{last}.", largest)
        rule = f"`group_size` must divide the batch of {size} images."
        check(size % (self.group_size or 1) == 0, rule, self.group_size)

    def __call__(
        self,
        images: Images,
        labels: Float32[np.ndarray, "n *classes"],
        random: np.random.Generator,
        shard: int = 0,
        num_shards: int = 1,
    ) -> tuple[Images, Float32[np.ndarray, "n *classes"]]:
        """Return the mixed images and labels, of a shard of a batch (`shard_of_batch`).

        Images are float32, or uint8 (rounded), and changed in place; labels are those of
        `soft_labels`.
        """
        count = len(images)
        pairs = (count + 1) // 2
        per_group = (self.group_size or count * num_shards) // 2 or 1
        groups = -(-count * num_shards // (2 * per_group))
        draws = [self.draw(images.shape[1:3], random) for _ in range(groups)]
        labels = labels.copy()
        for i in range(pairs):
            # Pair i of the whole batch is images i and n - 1 - i.
            coefficient, box = draws[min((shard * pairs + i) // per_group, groups - 1)]
            pair = [i, count - 1 - i]
            if box is not None:
                rows, columns = box
                images[pair, rows, columns] = images[pair[::-1], rows, columns]
            elif coefficient < 1:
                images[pair] = _mix(images[pair], coefficient)
            labels[pair] = _mix(labels[pair], coefficient)
        return images, labels


def shard_of_batch(count: int, shard: int, num_shards: int) -> Int[np.ndarray, "size"]:
    """Return the indices of the images of a shard of a batch, in ascending order.

    Shards of even size contain pairs of images i and `count - 1 - i`, which `Mixing` mixes.
    """
    size = count // num_shards
    if size % 2:
        return np.arange(shard * size, (shard + 1) * size)
    first = np.arange(shard * size // 2, (shard + 1) * size // 2)
    return np.concatenate([first, count - 1 - first[::-1]])


def _mix(values: Shaped[np.ndarray, "*shape"], coefficient: float) -> Shaped[np.ndarray, "*shape"]:
    """Return coefficient · x + (1 - coefficient) · x', x' reversed: float32, or rounded uint8."""
    mixed = np.float32(coefficient) * values
    mixed += np.float32(1 - coefficient) * values[::-1]
    return np.rint(mixed, out=mixed).astype("uint8") if values.dtype == np.uint8 else mixed


def soft_labels(
    labels: Shaped[np.ndarray, "n *targets"], classes: int
) -> Float32[np.ndarray, "n *classes"]:
    """Return labels of a loss: integers (n,) as one-hot (n, classes), unless `classes` is 1."""
    if labels.ndim == 2 or classes == 1:
        return labels.astype("float32")
    return np.float32(labels[:, None] == np.arange(classes))
