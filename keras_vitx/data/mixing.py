"""MixUp and CutMix, which mix the images and the labels of a batch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mixing:
    """Settings of MixUp and CutMix: one coefficient per batch, soft labels.

    Attributes:
        mixup: Parameter alpha of MixUp's Beta(alpha, alpha); 0 turns MixUp off.
        cutmix: Parameter alpha of CutMix's Beta(alpha, alpha); 0 turns CutMix off.
        mixing_probability: Probability that a batch is mixed.
        switch: Probability of CutMix in a mixed batch, where both are on.

    Raises:
        ValueError: if a value is out of range, or both MixUp and CutMix are off.
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    mixing_probability: float = 1.0
    switch: float = 0.5

    def __post_init__(self):
        for name, valid, expected in (
            ("mixup", self.mixup >= 0, "at least 0"),
            ("cutmix", self.cutmix >= 0, "at least 0"),
            ("mixing_probability", 0 <= self.mixing_probability <= 1, "in [0, 1]"),
            ("switch", 0 <= self.switch <= 1, "in [0, 1]"),
        ):
            if not valid:
                raise ValueError(f"`{name}` must be {expected}. Received: {getattr(self, name)}.")
        if not (self.mixup or self.cutmix):
            raise ValueError("`mixup` or `cutmix` must be above 0; without mixing: mixing=None.")
