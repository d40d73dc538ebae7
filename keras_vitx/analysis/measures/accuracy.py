"""Comparisons of accuracies and of their histories."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def converged_epoch(accuracies: Sequence[float], tolerance: float = 0.001) -> int:
    """Return the first epoch, from 1, whose accuracy is within `tolerance` of the best one.

    Our reading of "converge" in Refiner, Table 1, which does not define it.

    Args:
        accuracies: Accuracy after each epoch, fractions of 1.
        tolerance: As a fraction of 1; .001 is 0.1 %.

    Raises:
        ValueError: if there are no epochs.
    """
    accuracies = np.asarray(accuracies, "float64")
    if not accuracies.size:
        raise ValueError("`accuracies` must have at least one epoch.")
    return int(np.argmax(accuracies >= accuracies.max() - tolerance - 1e-12)) + 1


def relative_gap(accuracies: Any, baselines: Any) -> np.ndarray:
    r"""Return the improvement over a baseline in percent, $100\,(a - b) / b$.

    ConViT, Figure 2 and Table 2 (as a function of the fraction of the training data).

    Args:
        accuracies: Accuracies of a model.
        baselines: Accuracies of the baseline, of the same shape.
    """
    accuracies, baselines = (np.asarray(one, "float64") for one in (accuracies, baselines))
    return 100 * (accuracies - baselines) / baselines
