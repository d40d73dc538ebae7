"""Layers over tokens that add a global context, for use inside an MLP or an attention."""

from typing import Any

import keras

from keras_vitx.layers import eager as ops
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.masking import as_pairs, hidden, masked, shares

CONTEXTS = ("mean", "max", "class", "class_product", "class_and_mean")


def mean(x: Any, attention_mask: Any = None) -> Any:
    """Return the mean over the tokens, or over those that each token may attend.

    Args:
        x: `(batch, tokens, dim)`.
        attention_mask: Broadcastable to `(batch, tokens, tokens)`, or None.

    Returns:
        `(batch, 1, dim)`; with a mask that differs between tokens, `(batch, tokens, dim)`.
    """
    if attention_mask is None:
        return ops.mean(x, axis=1, keepdims=True)
    return ops.matmul(ops.cast(shares(as_pairs(attention_mask, x, x)), x.dtype), x)


def maximum(x: Any, attention_mask: Any = None) -> Any:
    """Return the maximum over the tokens, or over those that each token may attend; as `mean`."""
    if attention_mask is None:
        return ops.max(x, axis=1, keepdims=True)
    mask = as_pairs(attention_mask, x, x)[..., None]
    largest = ops.max(hidden(x[:, None], mask), axis=2)
    return masked(largest, ops.any(mask, axis=2))


@register
class ContextBroadcasting(Layer):
    r"""The mean over all tokens, added to each token: $y = (x + \bar x) / 2$.

    Context Broadcasting, Section 2.2, Equation 1; the mean includes the class token. With a
    `scale` it is $\mathrm{CB_S}$ (dimension scaling): $y = x + \Lambda \odot \bar x$ with
    $\Lambda$ of length `dim`. The formula of $\mathrm{CB_S}$ is unreadable in our copy of the
    paper; its form and the initial value of $\Lambda$ are our interpretation.

    Input and output: `(batch, tokens, dim)`. With an `attention_mask`, broadcastable to
    `(batch, tokens, tokens)`, the mean and the maximum of each token run over the tokens that
    it may attend, and are 0 if there is none; the mean then is uniform attention over them.
    The first token counts in any case.

    Args:
        context: What takes the place of $\bar x$ (Tables 10, 13, 14): `"mean"`, $\bar x$
            itself; `"max"`, the maximum over tokens; `"class"`, the first token;
            `"class_product"`, which multiplies every other token by the first,
            $y_i = x_i \odot x_0$; `"class_and_mean"`, $(x_0 + \bar x) / 2$, our
            interpretation of their combination.
        scale: Initial value of $\Lambda$, a number or an initializer; None is no $\Lambda$.
        halve: Whether the sum is halved; by default only without a `scale`.

    Raises:
        ValueError: if `context` is unknown, or `"class_product"` is given a `scale`.
    """

    def __init__(
        self,
        context: str = "mean",
        scale: float | keras.initializers.Initializer | None = None,
        halve: bool | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if context not in CONTEXTS:
            raise ValueError(f"`context` must be one of {CONTEXTS}. Received: {context!r}.")
        if context == "class_product" and scale is not None:
            raise ValueError(
                "`scale` must be None with context='class_product', which adds no context. "
                f"Received: scale={scale!r}."
            )
        self.context = context
        self.scale = scale
        self.halve = halve

    def build(self, input_shape):
        if self.scale is None:
            return
        initializer = self.scale
        if not isinstance(initializer, keras.initializers.Initializer):
            initializer = keras.initializers.Constant(self.scale)
        self.scaling = self.add_weight(
            name="scaling", shape=(input_shape[-1],), initializer=initializer.clone()
        )

    def compute_output_spec(self, x, attention_mask=None):
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def call(self, x, attention_mask=None):
        if self.context == "class_product":
            return ops.concatenate([x[:, :1], x[:, 1:] * x[:, :1]], axis=1)
        if self.context == "mean":
            context = mean(x, attention_mask)
        elif self.context == "max":
            context = maximum(x, attention_mask)
        elif self.context == "class":
            context = x[:, :1]
        else:
            context = (x[:, :1] + mean(x, attention_mask)) / 2
        y = x + (context if self.scale is None else context * self.scaling)
        halve = self.scale is None if self.halve is None else self.halve
        return y / 2 if halve else y


@register
class SqueezeExcitation(Layer):
    r"""Squeeze and excitation: channels are gated by a function of the mean over tokens.

    $$y = x \odot \sigma(W_2\,\mathrm{ReLU}(W_1 \bar x + b_1) + b_2)$$
    Hu et al., 2018; a baseline in Context Broadcasting, Section 2.2, Table 3.

    Input and output: `(batch, tokens, dim)`. `attention_mask` as in `ContextBroadcasting`.

    Args:
        ratio: Reduction ratio: `dim` divided by the hidden width.
    """

    def __init__(self, ratio: int = 16, **kwargs):
        super().__init__(**kwargs)
        self.ratio = ratio

    def build(self, input_shape):
        dim = input_shape[-1]
        hidden = max(dim // self.ratio, 1)
        self.fc1 = self.dense(hidden, "fc1")
        self.fc2 = self.dense(dim, "fc2")
        self.fc1.build((None, 1, dim))
        self.fc2.build((None, 1, hidden))

    def compute_output_spec(self, x, attention_mask=None):
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def call(self, x, attention_mask=None):
        summary = mean(x, attention_mask)
        return x * ops.sigmoid(self.fc2(ops.relu(self.fc1(summary))))
