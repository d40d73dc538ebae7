"""Images held out for validation, and fractions of the images of each class."""

import logging
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from keras_vitx.checks import check
from keras_vitx.data.sources.dataset import Split, is_regression
from keras_vitx.text import shorten

log = logging.getLogger(__name__)


def hold_out(
    split: Split, validation_split: float | Iterable[str | int], seed: int
) -> tuple[Split, Split]:
    """Split training images into (train, validation), by a fraction of each class or by names.

    A class of two or more images is in both splits, a single image stays in training. Labels
    (n, classes) are stratified by their largest entry, regression targets not at all. Raises a
    ValueError if no class has two images, or no image has one of the names.
    """
    if isinstance(validation_split, Real):
        drawn = _draw(split.labels, validation_split, np.random.RandomState(seed), keep=1)
        held_out = np.isin(np.arange(len(split)), drawn)
    else:
        names, known = set(map(str, validation_split)), split.names()
        held_out = np.array([name in names for name in known])
        if missing := sorted(names.difference(known)):
            text = "%d held-out images are no longer in the source: %s"
            log.warning(text, len(missing), shorten(missing))
    rule = "`validation_split` must name images, or be a fraction of classes of two or more."
    check(held_out.any(), rule, validation_split)
    return split.take(np.flatnonzero(~held_out)), split.take(np.flatnonzero(held_out))


def fraction_of(split: Split, fraction: float, seed: int) -> Split:
    """Return a random fraction of each class, at least one image, in the original order.

    A larger fraction contains the images of a smaller one. Regression targets are one class.
    """
    if fraction == 1:
        return split
    drawn = _draw(split.labels, fraction, np.random.default_rng(seed))
    return split.take(np.sort(drawn))


def _draw(labels: np.ndarray, fraction: float, random: Any, keep: int = 0) -> np.ndarray:
    """Return random indices of each class, at least one, but for `keep` of them."""
    classes = labels.argmax(axis=-1) if labels.ndim == 2 else labels
    if is_regression(labels):
        classes = np.zeros(len(labels), int)
    drawn = []
    for label in np.unique(classes):
        group = np.flatnonzero(classes == label)
        count = min(max(round(len(group) * fraction), 1), len(group) - keep)
        drawn.append(random.permutation(group)[:count])
    return np.concatenate(drawn)
