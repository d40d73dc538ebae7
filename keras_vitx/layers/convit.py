"""ConViT's positional self-attention (PSA) and gated positional self-attention (GPSA)."""

from math import isqrt
from typing import Literal

import keras

from keras_vitx.checks import check, check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import register
from keras_vitx.layers.initializers import normal


class ConvolutionalStart(keras.initializers.Initializer):
    r"""Initial positional weights: each head attends one offset of a $k \times k$ convolution.

    ConViT, Section 2, Equation 5. With $k = \lfloor\sqrt{\text{num heads}}\rfloor$ and the center
    $c = (k - 1) / 2$, head $h_1 + k h_2$ has the weights
    $\alpha\,(2 (h_2 - c),\ 2 (h_1 - c),\ -1)$ for (x, y, squared distance), in the order of the
    public checkpoints. Heads beyond $k^2$ start at random, scaled by $\alpha$, `locality_strength`.
    """

    def __init__(self, locality_strength: float):
        self.locality_strength = locality_strength

    def get_config(self):
        return {"locality_strength": self.locality_strength}

    def __call__(self, shape, dtype=None):
        heads = shape[1]
        side = isqrt(heads)
        offsets = 2 * ops.arange(side, dtype="float32") - (side - 1)
        x, y = offsets[:, None] + 0 * offsets, offsets + 0 * offsets[:, None]
        kernel = ops.cast(ops.reshape(ops.stack([x, y, 0 * x - 1]), (3, side**2)), dtype)
        if heads > side**2:
            rest = normal()((shape[0], heads - side**2), dtype=dtype)
            kernel = ops.concatenate([kernel, rest], axis=1)
        return self.locality_strength * kernel


@register
class PositionalAttention(Attention):
    r"""Self-attention with logits that depend on the offset between patches (PSA).

    ConViT, Section 2, Equation 4, and Appendix A:
    $$A_{ij} = \mathrm{softmax}_j(Q_i K_j^\top / \sqrt d + v^\top r_{ij} + b), \qquad
    r_{ij} = (x_j - x_i,\ y_j - y_i,\ |\delta_{ij}|^2),$$
    in units of patches, with learned $v$ and $b$ per head (`pos_proj`).

    Input and output: `(batch, patches, dim)`, without a class token, patches row by row; maps, as
    in `Attention`, `(batch, heads, patches, patches)`.

    Args:
        num_heads: Number of heads.
        grid: Rows and columns of patches, as many as tokens; None is a square grid.
        conv_start: Whether the value projection starts as the identity and $v$ as a convolution
            (Equation 5). `num_heads` must be a square; `"partial"` accepts any number and starts
            the heads beyond the largest square at random, as the public code does.
        locality_strength: How sharply each head initially attends its offset.
        qkv_bias: Whether the projections have a bias.
        zero_content: Whether the projections to queries and keys start at 0, to the letter of
            Equation 5, rather than near it as in the public code, N(0, 0.02²). At 0 each is the
            other's gradient, so that the attention stays positional for good.
        **kwargs: Further arguments of `Attention`.
    """

    fused = None

    def __init__(
        self,
        num_heads: int,
        grid: tuple[int, int] | None = None,
        conv_start: bool | str = True,
        locality_strength: float = 1.0,
        qkv_bias: bool = False,
        zero_content: bool = False,
        **kwargs,
    ):
        super().__init__(num_heads, qkv_bias=qkv_bias, **kwargs)
        side = isqrt(num_heads)
        check_argument("conv_start", conv_start, Literal[True, False, "partial"])
        fits = conv_start is not True or side**2 == num_heads
        check(fits, "`num_heads` must be a square, or conv_start='partial'.", num_heads)
        self.grid = None if grid is None else tuple(grid)
        self.conv_start = conv_start
        self.locality_strength = locality_strength
        self.zero_content = zero_content

    def build_projections(self, input_shape):
        self.rows, self.columns = self.grid or 2 * (isqrt(input_shape[1]),)
        content = {"kernel_initializer": "zeros"} if self.zero_content else {}
        identity = {"kernel_initializer": "identity"} if self.conv_start else {}
        self.qk = self.dense(2 * self.width, "qk", input_shape, self.qkv_bias, **content)
        self.v = self.dense(self.value_width, "v", input_shape, self.qkv_bias, **identity)
        start = ConvolutionalStart(self.locality_strength)
        kernel = {"kernel_initializer": start} if self.conv_start else {}
        self.pos_proj = self.dense(self.num_heads, "pos_proj", (None, 3), **kernel)

    def projections(self, x, training=False):
        query, key = ops.split(self.run(self.qk, x, training), 2, axis=-1)
        value = self.run(self.v, x, training)
        return [self.split_heads(part) for part in (query, key, value)]

    def logits_of(self, query, key):
        return super().logits_of(query, key) + self.over_pairs(*self.positions(), ops.add)

    def positions(self):
        r"""Return the positional logits, `(heads, rows, rows)` and `(heads, columns, columns)`.

        As $|\delta|^2$ is a sum over the axes, so are the logits of a pair of patches: $r$ is
        (0, y, y²) between rows plus (x, 0, x²) between columns.
        """
        # In float32, because TensorFlow has no range in half precision.
        y, x = (ops.arange(side, dtype="float32") for side in (self.rows, self.columns))
        y, x = y - y[:, None], x - x[:, None]
        pairs = [0 * y, y, y**2], [x, 0 * x, x**2]
        offsets = (ops.cast(ops.stack(pair, axis=-1), self.compute_dtype) for pair in pairs)
        return [ops.transpose(self.run(self.pos_proj, offset), (2, 0, 1)) for offset in offsets]

    def over_pairs(self, by_row, by_column, combine):
        """Combine values per pair of rows and of columns to `(heads, patches, patches)`."""
        pairs = combine(by_row[:, :, None, :, None], by_column[:, None, :, None, :])
        patches = self.rows * self.columns
        return ops.reshape(pairs, (self.num_heads, patches, patches))


@register
class GatedPositionalAttention(PositionalAttention):
    r"""Self-attention with a gate per head between content and position (GPSA).

    ConViT, Section 3, Equations 6 and 7:
    $$A = (1 - \sigma(\lambda))\,\mathrm{softmax}(Q K^\top / \sqrt d)
        + \sigma(\lambda)\,\mathrm{softmax}(v^\top r + b)$$
    with one gate $\lambda$ per head (`gating_param`). The rows of a convex combination of maps sum
    to 1, so Equation 6's `normalize` changes nothing and is left out. Without layers over the maps,
    the content term is fused attention. The positional map $P$, a softmax of a sum over axes, is a
    product over axes, $P_{(r,c),(r',c')} = R_{r,r'} C_{c,c'}$: so $P V$ is two products, for the
    whole batch. With an `attention_mask`, both softmaxes run over the allowed keys, unfused.

    Input and output: as of `PositionalAttention`, `(batch, patches, dim)`.

    Args:
        num_heads: Number of heads.
        initial_gate: Initial value of $\lambda$.
        learn_gates: Whether $\lambda$ is trained.
        **kwargs: Further arguments of `PositionalAttention`.
    """

    def __init__(
        self, num_heads: int, initial_gate: float = 1.0, learn_gates: bool = True, **kwargs
    ):
        super().__init__(num_heads, **kwargs)
        self.initial_gate = initial_gate
        self.learn_gates = learn_gates

    def build(self, input_shape):
        start = keras.initializers.Constant(self.initial_gate)
        self.gating_param = self.add_weight(
            (self.num_heads,), start, trainable=self.learn_gates, name="gating_param"
        )
        super().build(input_shape)

    def gates(self):
        r"""Return $\sigma(\lambda)$, the weight of the positional map per head, `(heads, 1, 1)`."""
        gates = ops.sigmoid(ops.reshape(self.gating_param, (self.num_heads, 1, 1)))
        return ops.cast(gates, self.compute_dtype)

    def logits_of(self, query, key):
        # The content logits only: the positional logits have a softmax of their own.
        return Attention.logits_of(self, query, key)

    def softmax_maps(self, query, key, training=False, mask=None):
        gate = self.gates()
        content = ops.cast(super().softmax_maps(query, key, training, mask), self.compute_dtype)
        return (1 - gate) * content + gate * self.positional_maps(mask)

    def positional_maps(self, mask=None):
        """Return the softmax of the positional logits, over the allowed keys."""
        maps = self.over_pairs(*map(ops.softmax, self.positions()), ops.multiply)
        if mask is None:
            return maps
        allowed = ops.zero_masked(ops.at_least_float32(maps[None]), mask)
        sums = ops.sum(allowed, axis=-1, keepdims=True)
        # A query without a key gives 0.
        return ops.cast(allowed / ops.where(sums > 0, sums, ops.ones_like(sums)), maps.dtype)

    def fused(self, query, key, value, training=False, mask=None):
        if mask is not None:
            # The positional map differs between images and is no product over the axes.
            return self.aggregate(self.softmax_maps(query, key, training, mask), value, training)
        gate = self.gates()
        by_row, by_column = map(ops.softmax, self.positions())
        content = ops.attention(query, key, value, training=training)
        batch, _, heads, size = ops.shape(value)
        values = ops.reshape(value, (batch, self.rows, self.columns, heads, size))
        values = ops.transpose(values, (3, 1, 0, 2, 4))
        # One product for the rows of the whole batch. Several devices can split an axis that
        # begins with the images, but not one with the images in its middle.
        merged = ops.reshape(values, (heads, self.rows, batch * self.columns * size))
        # The gate multiplies the smallest factor.
        values = ops.reshape(ops.matmul(gate * by_row, merged), ops.shape(values))
        values = ops.matmul(by_column[:, None, None], values)
        positional = ops.reshape(ops.transpose(values, (2, 1, 3, 0, 4)), ops.shape(value))
        return (1 - gate)[:, 0] * content + positional
