"""Centred kernel alignment of features (Refiner)."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def linear_cka(x: Any, y: Any) -> float:
    r"""Return the linear centered kernel alignment of two sets of features, `(images, ...)`.

    $$\mathrm{CKA}(X, Y) = \frac{\|Y^\top X\|_F^2}{\|X^\top X\|_F \, \|Y^\top Y\|_F}$$
    with centered columns (Kornblith et al., 2019; Refiner, Appendix A.4). It is computed
    from the `(images, images)` products, $\|Y^\top X\|_F^2 = \langle XX^\top, YY^\top \rangle$.

    The result is 0 to 1, or NaN if one set is the same for all images. Raises a ValueError for
    different numbers of images, or fewer than two.
    """
    x, y = (np.asarray(one, "float64") for one in (x, y))
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(
            "`x` and `y` must be features of the same images, at least two. "
            f"Received: {len(x)} and {len(y)} images."
        )
    x, y = _products(x), _products(y)
    norms = np.linalg.norm(x) * np.linalg.norm(y)
    return float((x * y).sum() / norms) if norms else float("nan")


def normalized_cka(features: Sequence[Any], last: Any | None = None) -> np.ndarray:
    r"""Return how near the features of each block are to the final ones.

    $$F_k = \mathrm{CKA}(f_k, f_\text{out}) / \mathrm{CKA}(f_\text{in}, f_\text{out})$$
    with $f_\text{in}$ the output of the first block (Refiner, Appendix A.4, Equation 2;
    Figures 2 and 4). The paper takes the mean over ten random batches of 32 images. It does
    not say whether tokens are flattened or pooled; here the caller chooses by what is given.

    Args:
        features: The features after each block, `(images, ...)`: tokens, which are
            flattened, or their means.
        last: The final features $f_\text{out}$; None takes those of the last block.

    Returns:
        `(blocks,)`; the first entry is 1.

    Raises:
        ValueError: as in `linear_cka`.
    """
    last = features[-1] if last is None else last
    values = np.array([linear_cka(one, last) for one in features])
    return values / values[0]


def _products(features):
    """Return the centered products between images, `(images, images)`."""
    features = features.reshape(len(features), -1)
    features = features - features.mean(0)
    return features @ features.T
