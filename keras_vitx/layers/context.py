"""Context Broadcasting and the variants of its tables: a global context for each token."""

from typing import Literal

import keras

from keras_vitx.checks import check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.initializers import start_from
from keras_vitx.layers.maps import MapLayer

Context = Literal["mean", "max", "class", "class_product", "class_and_mean"]


@register
class ContextBroadcasting(Layer):
    r"""The mean over all tokens, added to each token: $y = (x + \bar x) / 2$.

    Context Broadcasting, Section 2.2, Equation 1; the mean includes the class token. With a `scale`
    it is $\mathrm{CB_S}$ (dimension scaling): $y = x + \Lambda \odot \bar x$ with $\Lambda$ of
    length `dim`; this form, unreadable in our copy of the paper, is our interpretation.

    Input and output: `(batch, tokens, dim)`.

    Args:
        context: What takes the place of $\bar x$ (Tables 10, 13, 14): `"mean"`, $\bar x$ itself;
            `"max"`, the maximum over tokens; `"class"`, the first token; `"class_product"`,
            $y_i = x_i \odot x_0$ for every other token (our reading of Tables 13 and 14, whose
            formula is lost); `"class_and_mean"`, $(x_0 + \bar x) / 2$, our interpretation of their
            combination.
        scale: Initial value of $\Lambda$, a number or an initializer; None is no $\Lambda$. It has
            no effect on `"class_product"`.
        halve: Whether the sum is halved; by default only without a `scale`.
    """

    def __init__(
        self,
        context: str = "mean",
        scale: float | keras.initializers.Initializer | None = None,
        halve: bool | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_argument("context", context, Context)
        self.context = context
        self.scale = scale
        self.halve = halve

    def build(self, input_shape):
        if self.scale is not None:
            start = start_from(self.scale)
            self.scaling = self.add_weight((input_shape[-1],), start, name="scaling")

    def call(self, x):
        if self.context == "class_product":
            return ops.concatenate([x[:, :1], x[:, 1:] * x[:, :1]], axis=1)
        context = self.context_of(x)
        y = x + (context if self.scale is None else context * self.scaling)
        halve = self.scale is None if self.halve is None else self.halve
        return y / 2 if halve else y

    def context_of(self, x):
        r"""Return what takes the place of $\bar x$, `(batch, 1, dim)`."""
        if self.context == "max":
            return ops.max(x, axis=1, keepdims=True)
        if self.context == "class":
            return x[:, :1]
        mean = ops.mean(x, axis=1, keepdims=True)
        return mean if self.context == "mean" else (x[:, :1] + mean) / 2


@register
class UniformHeads(MapLayer):
    r"""Uniform maps, appended to the learned ones: $A_{ij} = 1/N$, with $N$ keys.

    Context Broadcasting, Section 2.2, Table 3. For use in `on_weights`; the attention then has one
    value head per map. With $H$ heads, `Attention(H - 1, head_size=dim // H,
    on_weights=[UniformHeads(1)])` replaces one head, the same with `UniformHeads(2)` does so at
    equal parameters, and `Attention(H, on_weights=[UniformHeads(1)])` appends one.

    Input: `(batch, heads, queries, keys)`. Output: the same with `count` more heads.

    Args:
        count: Number of uniform maps, at least 1.
    """

    def __init__(self, count: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def heads_of(self, heads):
        return heads + self.count

    def call(self, maps):
        batch, _, queries, keys = ops.shape(maps)
        uniform = ops.full((batch, self.count, queries, keys), 1 / keys, dtype=maps.dtype)
        return ops.concatenate([maps, uniform], axis=1)
