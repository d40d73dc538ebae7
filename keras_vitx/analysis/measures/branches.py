"""The size of residual branches (CaiT) and of learned scales (Context Broadcasting)."""

from typing import Any, Literal

import numpy as np

from keras_vitx.analysis.measures.checks import check_same_shape


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
    check_same_shape("`branch` and `inputs`", "(..., tokens, dim)", branch, inputs)
    if over not in ("token", "image"):
        raise ValueError(f"`over` must be 'token' or 'image'. Received: {over!r}.")
    axes = -1 if over == "token" else (-2, -1)
    own, stream = (np.sqrt(np.square(part).sum(axes)) for part in (branch, inputs))
    ratio = own / np.maximum(stream, np.finfo("float32").tiny)
    return ratio.mean(-1) if over == "token" else ratio


def scale_summary(scale: Any) -> tuple[float, float]:
    r"""Return the mean of $\Lambda$, `(dim,)`, of $\mathrm{CB_S}$, and its .1 over its .9 quantile.

    Context Broadcasting, Section 3.5, Figure 6. The choice of quantiles is ours.
    """
    scale = np.asarray(scale, "float32")
    below, above = np.quantile(scale, [0.1, 0.9])
    return float(scale.mean()), float(below / above) if above else float("nan")
