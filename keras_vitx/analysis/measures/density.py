"""Density of attention: entropy, and how steep the softmax is (Context Broadcasting)."""

from typing import Any

import numpy as np

from keras_vitx.analysis.measures.checks import probabilities


def entropy(maps: Any) -> np.ndarray:
    r"""Return the entropy of each row of attention, in nats.

    $$H_i = -\sum_j A_{ij} \log A_{ij}, \qquad 0 \log 0 = 0$$
    from 0 (one key) to $\log T$ (uniform over $T$ keys). Context Broadcasting, Section 2.1,
    Figures 3 and 5, averages it over heads and queries.

    Args:
        maps: `(..., queries, keys)`, probabilities.

    Returns:
        `(..., queries)`.

    Raises:
        ValueError: if the maps are not probabilities, such as after `ReAttention`.
    """
    maps = probabilities(maps)
    logs = np.log(maps, out=np.zeros_like(maps), where=maps > 0)
    return -np.einsum("...k,...k->...", maps, logs)


def steepness(maps: Any) -> np.ndarray:
    r"""Return the nuclear norm of the Jacobian of the softmax, per row of attention.

    $$\|J\|_* = \mathrm{tr}\,(\mathrm{diag}(a) - a a^\top) = 1 - \sum_j a_j^2,$$
    because $J$ is positive semi-definite. It is largest, $1 - 1/T$, for uniform attention
    (Context Broadcasting, Section 2.1).

    Args:
        maps: `(..., queries, keys)`, probabilities.

    Returns:
        `(..., queries)`.

    Raises:
        ValueError: if the maps are not probabilities.
    """
    maps = probabilities(maps)
    return 1 - np.einsum("...k,...k->...", maps, maps)


def sorted_by_entropy(maps: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all maps, probabilities, and their mean entropies, `(count,)`, the sparsest first.

    Context Broadcasting, Figure 3b. Leading axes are flattened: `(count, queries, keys)`.
    """
    means = entropy(maps).mean(-1).ravel()
    order = np.argsort(means, kind="stable")
    return np.asarray(maps).reshape(-1, *np.shape(maps)[-2:])[order], means[order]
