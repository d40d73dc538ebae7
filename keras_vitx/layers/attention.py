"""Attention that is given its modification, and its form for class tokens."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.maps import HeadMixing


@register
class Attention(Layer):
    r"""Multi-head self-attention with layers over its maps.

    $Q, K, V = x W_{qkv} + b_{qkv}$, then with $d$ the size of a head
    $$A = w(\mathrm{softmax}(l(Q K^\top / \sqrt d))), \qquad y = A V W_o + b_o,$$
    where $l$ are the layers of `on_logits` and $w$ those of `on_weights`, in
    order. Without either, without dropout and when the maps are not asked for,
    the backend's fused attention runs instead; the softmax is in float32 in
    every precision.

    Input: `(batch, tokens, dim)`. Output: the same shape, or a pair of it and
    the maps `(batch, heads, tokens, tokens)` that multiplied the values.

    Args:
        num_heads: Number of heads. It must divide `dim`.
        on_logits: Layers over maps, run before the softmax.
        on_weights: Layers over maps, run after the softmax.
        qkv_bias: Whether the projections to queries, keys and values have a bias.
        dropout: Rate at which entries of the maps are dropped in training.
        proj_dropout: Rate at which outputs are dropped in training.

    Raises:
        ValueError: at build, when `num_heads` does not divide `dim`.
    """

    def __init__(
        self,
        num_heads: int,
        on_logits: Sequence[keras.layers.Layer] = (),
        on_weights: Sequence[keras.layers.Layer] = (),
        qkv_bias: bool = True,
        dropout: float = 0.0,
        proj_dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.on_logits = list(on_logits)
        self.on_weights = list(on_weights)
        self.qkv_bias = qkv_bias
        self.dropout = dropout
        self.proj_dropout = proj_dropout
        self.attn_drop = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.proj_drop = keras.layers.Dropout(proj_dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        dim = input_shape[-1]
        self.qkv = self.dense(3 * dim, "qkv", self.qkv_bias)
        self.proj = self.dense(dim, "proj")
        self.qkv.build(input_shape)
        self.proj.build(input_shape)
        self.build_maps(dim, queries=input_shape[1], keys=input_shape[1])

    def build_maps(self, dim: int, queries: int | None, keys: int | None) -> None:
        """Build the layers over maps of `queries` x `keys` entries."""
        if dim % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the tokens. "
                f"Received: num_heads={self.num_heads}, width={dim}."
            )
        for layer in (*self.on_logits, *self.on_weights):
            layer.build((None, self.num_heads, queries, keys))

    def split_heads(self, x):
        """Reshape `(batch, tokens, dim)` to `(batch, tokens, heads, head size)`."""
        batch, tokens, dim = ops.shape(x)
        return ops.reshape(x, (batch, tokens, self.num_heads, dim // self.num_heads))

    def attend(self, query, key, value, training=False, return_attention_scores=False):
        """Aggregate `value` by the modified attention of `query` to `key`.

        Args:
            query: `(batch, queries, heads, head size)`; `key` and `value` alike,
                `(batch, keys, heads, head size)`.
            training: Whether entries of the maps are dropped.
            return_attention_scores: Whether the maps are wanted.

        Returns:
            `(batch, queries, dim)`, and the maps `(batch, heads, queries, keys)`
            or None where they were not asked for.
        """
        batch, queries, heads, head_size = ops.shape(query)
        dropped = bool(training and self.dropout)
        # Compiled by JAX for a CPU, the fused attention fails in float16.
        fails = keras.backend.backend() == "jax" and self.compute_dtype == "float16"
        modified = self.on_logits or self.on_weights or dropped
        if not (modified or return_attention_scores or fails):
            y = ops.dot_product_attention(query, key, value)
            return ops.reshape(y, (batch, queries, heads * head_size)), None

        # Scaling the queries touches fewer numbers than scaling the logits.
        query = ops.transpose(query * head_size**-0.5, (0, 2, 1, 3))
        maps = ops.matmul(query, ops.transpose(key, (0, 2, 3, 1)))
        for layer in self.on_logits:
            maps = layer(maps)
        maps = ops.cast(ops.softmax(ops.cast(maps, "float32")), self.compute_dtype)
        for layer in self.on_weights:
            maps = layer(maps)
        weights = self.attn_drop(maps, training=training) if dropped else maps
        y = ops.matmul(weights, ops.transpose(value, (0, 2, 1, 3)))
        y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (batch, queries, heads * head_size))
        return y, maps if return_attention_scores else None

    def call(self, x, training=False, return_attention_scores=False):
        batch, tokens, dim = ops.shape(x)
        shape = (batch, tokens, 3, self.num_heads, dim // self.num_heads)
        query, key, value = ops.unstack(ops.reshape(self.qkv(x), shape), axis=2)
        y, maps = self.attend(query, key, value, training, return_attention_scores)
        y = self.proj_drop(self.proj(y), training=training)
        return (y, maps) if return_attention_scores else y


def TalkingHeadsAttention(num_heads: int, **kwargs) -> Attention:
    """Attention whose heads are mixed linearly before and after the softmax.

    CaiT, Section 4.3. The mixes are named `proj_l` and `proj_w`, as in the
    public checkpoints.

    Args:
        num_heads: Number of heads.
        **kwargs: Further arguments of `Attention`.
    """
    dtype = kwargs.get("dtype")
    return Attention(
        num_heads,
        on_logits=[HeadMixing(name="proj_l", dtype=dtype)],
        on_weights=[HeadMixing(name="proj_w", dtype=dtype)],
        **kwargs,
    )


@register
class ClassAttention(Attention):
    r"""Attention of the class tokens to all tokens (CaiT, Section 3, Equations 5-9).

    With $z = [x_\text{class}, x_\text{patches}]$:
    $Q = x_\text{class} W_q + b_q$, $K = z W_k + b_k$, $V = z W_v + b_v$, then as
    `Attention`. Its cost is linear in the number of tokens.

    Input: `(batch, class tokens + patches, dim)`, the class tokens first.
    Output: `(batch, class tokens, dim)`, or a pair of it and the maps
    `(batch, heads, class tokens, keys)`.

    Args:
        num_heads: Number of heads. It must divide `dim`.
        num_class_tokens: How many leading tokens ask: 1, or 2 with a
            distillation token (Table B.1).
        class_in_keys: Whether the class tokens are among the keys; False is
            $z = x_\text{patches}$ of Appendix B.
        **kwargs: Further arguments of `Attention`.
    """

    def __init__(
        self,
        num_heads: int,
        num_class_tokens: int = 1,
        class_in_keys: bool = True,
        **kwargs,
    ):
        super().__init__(num_heads, **kwargs)
        self.num_class_tokens = num_class_tokens
        self.class_in_keys = class_in_keys

    def build(self, input_shape):
        tokens, dim = input_shape[1:]
        self.q = self.dense(dim, "q", self.qkv_bias)
        self.k = self.dense(dim, "k", self.qkv_bias)
        self.v = self.dense(dim, "v", self.qkv_bias)
        self.proj = self.dense(dim, "proj")
        for child in (self.q, self.k, self.v, self.proj):
            child.build(input_shape)
        if tokens is not None and not self.class_in_keys:
            tokens -= self.num_class_tokens
        self.build_maps(dim, queries=self.num_class_tokens, keys=tokens)

    def call(self, x, training=False, return_attention_scores=False):
        asking = x[:, : self.num_class_tokens]
        asked = x if self.class_in_keys else x[:, self.num_class_tokens :]
        y, maps = self.attend(
            self.split_heads(self.q(asking)),
            self.split_heads(self.k(asked)),
            self.split_heads(self.v(asked)),
            training,
            return_attention_scores,
        )
        y = self.proj_drop(self.proj(y), training=training)
        return (y, maps) if return_attention_scores else y
