"""The size of residual branches (CaiT) and of learned scales (Context Broadcasting)."""

from typing import Any, Literal

import numpy as np


def branch_ratio(branch: Any, inputs: Any, over: Literal["token", "image"] = "token") -> np.ndarray:
    r"""Return the norm of a residual branch divided by that of the tokens it is added to.

    $$\|R_l(x)\|_2 / \|x\|_2$$
    with LayerScale included in $R_l$ (CaiT, Section 4.1.3, Figure 4).

    Args:
        branch: What the branch adds, `(..., tokens, dim)`.
        inputs: The tokens to which it is added, the same shape.
        over: What the norms are over: `"token"`, the channels of one token, averaged over
            tokens; or `"image"`, all tokens and channels. The paper does not say which.

    Returns:
        `(...)`.

    Raises:
        ValueError: if the shapes differ, or `over` is unknown.
    """
    branch, inputs = np.asarray(branch, "float32"), np.asarray(inputs, "float32")
    if branch.shape != inputs.shape:
        raise ValueError(
            "`branch` and `inputs` must have the same shape, (..., tokens, dim). "
            f"Received: {branch.shape} and {inputs.shape}."
        )
    if over not in ("token", "image"):
        raise ValueError(f"`over` must be 'token' or 'image'. Received: {over!r}.")
    axes = -1 if over == "token" else (-2, -1)
    norms = (np.sqrt(np.square(part).sum(axes)) for part in (branch, inputs))
    own, stream = norms
    ratio = own / np.maximum(stream, np.finfo("float32").tiny)
    return ratio.mean(-1) if over == "token" else ratio


def scale_summary(scale: Any, low: float = 0.1, high: float = 0.9) -> tuple[float, float]:
    r"""Return the mean of $\Lambda$ of $\mathrm{CB_S}$, and the ratio of two of its quantiles.

    Context Broadcasting, Section 3.5, Figure 6. Which quantiles the paper takes is unreadable
    in our copy; the defaults are our choice.

    Args:
        scale: $\Lambda$, `(dim,)`.
        low: The quantile that is divided, from 0 to 1.
        high: The quantile by which it is divided.

    Returns:
        The mean, and the low quantile divided by the high one.

    Raises:
        ValueError: if not 0 <= low < high <= 1.
    """
    if not 0 <= low < high <= 1:
        raise ValueError(f"Must be 0 <= `low` < `high` <= 1. Received: low={low}, high={high}.")
    scale = np.asarray(scale, "float32")
    below, above = np.quantile(scale, [low, high])
    return float(scale.mean()), float(below / above) if above else float("nan")
