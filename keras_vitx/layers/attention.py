"""Multi-head self-attention, modified by the layers it is given."""

from collections.abc import Sequence
from typing import Any, Literal

import keras

from keras_vitx.checks import check, check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, build_all, register
from keras_vitx.layers.normalizers import NORMALIZERS
from keras_vitx.layers.recording import Tensor, is_recording, record


@register
class Attention(Layer):
    r"""Multi-head self-attention with layers over its maps.

    $$Q, K, V = x W_{qkv} + b_{qkv}, \qquad
    A = w(\mathrm{softmax}(l(Q K^\top / \sqrt d))), \qquad y = A V W_o + b_o,$$
    where $d$ is the size of a head, $l$ are the layers of `on_logits` and $w$ those of
    `on_weights`, in order; those of `on_queries_keys` change $Q$ and $K$ before. The softmax is
    computed in float32 in every precision. Layers of `on_weights` may change the number of maps;
    there is one value head per final map. With the softmax, neither layers over maps nor dropout,
    and no maps requested, the backend's fused attention runs instead, unless
    `keras.config.disable_flash_attention()` turns it off (it may have no second derivative).

    Input: `(batch, tokens, dim)`. Output: the same shape; with `return_attention_scores=True`, a
    pair of it and the maps that multiplied the values, `(batch, heads, tokens, tokens)`.

    `attention_mask` is boolean and broadcastable to `(batch, queries, keys)`, True where a query
    may attend a key; a mask of padding `(batch, keys)` is passed as `mask[:, None, :]`. The maps
    are 0 at other keys, also before and after each layer of `on_weights`, and for a query without a
    key. A convolution sees neighboring queries, too: `mask[:, :, None] & mask[:, None, :]`.

    A subclass overrides the step in which it differs (docs/guides/your-attention.md lists them).
    One that differs between `logits_of` and `aggregate` must say `fused = None`, or define its own.

    Args:
        num_heads: Number of query and key heads, a divisor of `dim` without `head_size`.
        head_size: Width of a head; None is `dim / num_heads`.
        on_input: Layers over tokens, run before the projections.
        on_queries_keys: Layers over a pair of queries and keys, `(batch, tokens, heads, size)`.
        on_logits: Layers over maps, run before the softmax.
        on_weights: Layers over maps, run after the softmax.
        on_output: Layers over tokens, run after the output projection.
        qkv_bias: Whether the projections to queries, keys and values have a bias; `"qv"` is one of
            queries and values (EVA-02, DINOv3), as rotary positions see one of the keys.
        dropout: Dropout rate of the maps.
        proj_dropout: Dropout rate of the output projection.
        initialization: Initial weights of the projections, as in `keras_vitx.layers.initializers`.
        normalizer: What makes maps of logits: `"softmax"`, or one of `layers.normalizers`:
            `"off_by_one"`, `"sigmoid"`, `"relu"`, `"softpick"`, `"sparsemax"`, `"entmax15"`. Rows
            sum to 1 with the softmax and the last two.
        gate: Whether the values are multiplied by $\sigma(x W_g + b_g)$ before the projection, one
            number per token and `"head"`, or per `"element"` (Qiu et al., 2025, arXiv 2505.06708).
            $b_g$ starts at 4: gates start open.
        on_heads: Layers over the aggregated heads, side by side, `(batch, queries, heads * size)`;
            also with fused attention (the norms of EVA-02-CLIP and BEiT-3).
        proj_bias: Whether the output projection has a bias.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int | None = None,
        on_input: Sequence[keras.layers.Layer] = (),
        on_queries_keys: Sequence[keras.layers.Layer] = (),
        on_logits: Sequence[keras.layers.Layer] = (),
        on_weights: Sequence[keras.layers.Layer] = (),
        on_output: Sequence[keras.layers.Layer] = (),
        qkv_bias: bool | str = True,
        dropout: float = 0.0,
        proj_dropout: float = 0.0,
        initialization: str = "normal",
        normalizer: str = "softmax",
        gate: str | None = None,
        on_heads: Sequence[keras.layers.Layer] = (),
        proj_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_argument("qkv_bias", qkv_bias, Literal[True, False, "qv"])
        check_argument("normalizer", normalizer, Literal["softmax", *NORMALIZERS])
        check_argument("gate", gate, Literal["head", "element"] | None)
        self.num_heads = num_heads
        self.head_size = head_size
        self.on_input = list(on_input)
        self.on_output = list(on_output)
        self.on_queries_keys = list(on_queries_keys)
        self.on_heads = list(on_heads)
        self.on_logits = list(on_logits)
        self.on_weights = list(on_weights)
        self.qkv_bias = qkv_bias
        self.proj_bias = proj_bias
        self.dropout = dropout
        self.proj_dropout = proj_dropout
        self.initialization = initialization
        self.normalizer = normalizer
        self.gate = gate
        dtype = self.dtype_policy
        self.attn_drop = keras.layers.Dropout(dropout, dtype=dtype, name="attn_drop")
        self.proj_drop = keras.layers.Dropout(proj_dropout, dtype=dtype, name="proj_drop")

    def call(self, x, training=False, return_attention_scores=False, attention_mask=None):
        x = self.run_all(self.on_input, x, training)
        query, key, value = self.projections(x, training)
        query, key = self.run_all(self.on_queries_keys, (query, key), training)
        mask = as_mask(attention_mask, value)
        y, maps = self.attend(query, key, value, training, mask, return_attention_scores)
        y = self.project(self.gated(y, x, training), training)
        return (y, maps) if return_attention_scores else y

    def attend(self, query, key, value, training=False, mask=None, needs_maps=False):
        """Return the values that each query gathers, and the maps, or None where not computed."""
        drops = training and self.attn_drop.rate
        is_plain = self.fused is not None and self.normalizer == "softmax"
        changes_maps = not is_plain or self.on_logits or self.on_weights or drops
        if needs_maps or is_recording() or (changes_maps and training):
            maps = self.maps_of(query, key, training, mask)
            return self.aggregate(maps, value, training), maps
        if not changes_maps:
            return self.fused(query, key, value, training, mask), None

        def attend_some(value, query, key, mask):
            return self.aggregate(self.maps_of(query, key, False, mask), value)

        return ops.by_images(attend_some, value, query, key, mask), None

    def projections(self, x, training=False):
        """Return queries, keys and values, each `(batch, tokens, heads, size)`."""
        x = self.run(self.qkv, x, training)
        if self.qkv_bias == "qv":
            q_bias, v_bias = (ops.cast(bias, x.dtype) for bias in (self.q_bias, self.v_bias))
            x = x + ops.concatenate([q_bias, ops.zeros_like(q_bias), v_bias])
        x = self.split_heads(x)
        if self.value_width == self.width:
            # The gradient of a split is one concatenation; that of slices, a sum of three tensors.
            return ops.split(x, 3, axis=2)
        # Under PyTorch, a split at given indices synchronizes with the GPU.
        heads = self.num_heads
        return x[:, :, :heads], x[:, :, heads : 2 * heads], x[:, :, 2 * heads :]

    def softmax_maps(self, query, key, training=False, mask=None):
        """Return the maps after the softmax, `(batch, heads, queries, keys)`."""
        logits = self.logits_of(query, key)
        logits = self.run_over_maps(self.on_logits, logits, training, mask)
        # A layer that computes in float32 sees maps that were not rounded before.
        dtype = self.on_weights[0].compute_dtype if self.on_weights else self.compute_dtype
        return ops.zero_masked(self.softmax_of(ops.mask_logits(logits, mask), dtype), mask)

    def logits_of(self, query, key):
        """Return the scaled dot products of queries and keys, `(batch, heads, queries, keys)`."""
        return ops.logits(query, key)

    def softmax_of(self, logits, dtype):
        """Return the maps of logits, in a dtype; the logits of masked keys are very negative."""
        if self.normalizer == "softmax":
            return ops.softmax(logits, dtype)
        return ops.cast(NORMALIZERS[self.normalizer](ops.at_least_float32(logits)), dtype)

    def maps_of(self, query, key, training=False, mask=None):
        """Return the maps that multiply the values, `(batch, heads, queries, keys)`."""
        weights = record("softmax", self.softmax_maps(query, key, training, mask))
        return self.run_over_maps(self.on_weights, weights, training, mask)

    def run_over_maps(self, layers, maps, training=False, mask=None):
        """Run map layers, one after another; the masked entries of what they see are 0."""
        for layer in layers:
            maps = self.run(layer, ops.zero_masked(maps, mask), training)
        return ops.cast(ops.zero_masked(maps, mask), self.compute_dtype)

    def aggregate(self, maps, value, training=False):
        """Multiply the maps with the values, `(batch, queries, heads, size)`."""
        value = record("values", value)
        maps = self.run(self.attn_drop, record("maps", maps), training)
        y = ops.checkpoint_name(ops.matmul(maps, ops.transpose(value, (0, 2, 1, 3))))
        return ops.transpose(y, (0, 2, 1, 3))

    def fused(self, query, key, value, training=False, mask=None):
        """Return `aggregate(softmax_maps(query, key), value)` without the maps."""
        return ops.attention(query, key, value, mask, training)

    def gated(self, y, x, training=False):
        """Run `on_heads` on `y`, `(batch, queries, heads, size)`; multiply by the gates of `x`."""
        if self.on_heads:
            batch, tokens, heads, size = ops.shape(y)
            y = ops.reshape(y, (batch, tokens, heads * size))
            y = self.split_heads(self.run_all(self.on_heads, y, training))
        if self.gate_proj is None:
            return y
        gates = ops.sigmoid(self.run(self.gate_proj, x[:, : y.shape[1]], training))
        return y * (gates[..., None] if self.gate == "head" else self.split_heads(gates))

    def project(self, y, training=False):
        """Project the aggregated values of all heads to the output of the layer."""
        batch, tokens, heads, size = ops.shape(y)
        y = ops.reshape(y, (batch, tokens, heads * size))
        return self.run_all([self.proj, self.proj_drop, *self.on_output], y, training)

    def build(self, input_shape):
        _, tokens, dim = input_shape
        fits = self.head_size is not None or dim % self.num_heads == 0
        check(fits, f"`num_heads` must divide the width of the tokens, {dim}.", self.num_heads)
        maps = build_all(self.on_logits, self.maps_shape(tokens))
        _, heads, queries, keys = build_all(self.on_weights, maps)
        input_shape = build_all(self.on_input, input_shape)
        build_all(self.on_output, (None, queries, dim))
        self.size = self.head_size or dim // self.num_heads
        self.width = self.num_heads * self.size  # Of all queries, or keys.
        self.value_width = heads * self.size
        for layer in self.on_queries_keys:
            layer.build([(None, count, self.num_heads, self.size) for count in (queries, keys)])
        build_all(self.on_heads, (None, queries, self.value_width))
        self.proj = self.dense(dim, "proj", (None, queries, self.value_width), self.proj_bias)
        self.build_projections(input_shape)
        units = {"head": heads, "element": self.value_width}.get(self.gate)
        start = {"bias_initializer": keras.initializers.Constant(4.0)}
        self.gate_proj = units and self.dense(units, "gate", (None, queries, dim), **start)

    def maps_shape(self, tokens):
        """Return the shape of the maps for a number of tokens, or None."""
        return (None, self.num_heads, tokens, tokens)

    def build_projections(self, input_shape):
        """Build what `projections` runs."""
        width = 2 * self.width + self.value_width
        self.qkv = self.dense(width, "qkv", input_shape, self.qkv_bias is True)
        if self.qkv_bias == "qv":
            self.q_bias = self.add_weight((self.width,), name="q_bias", initializer="zeros")
            self.v_bias = self.add_weight((self.value_width,), name="v_bias", initializer="zeros")

    def split_heads(self, x):
        """Reshape `(batch, tokens, heads * size)` to `(batch, tokens, heads, size)`."""
        batch, tokens, width = ops.shape(x)
        return ops.reshape(x, (batch, tokens, width // self.size, self.size))


def as_mask(attention_mask: Tensor | None, keys: Tensor) -> Any:
    """Return a mask as booleans, `(batch or 1, 1, queries or 1, keys)`; None for None."""
    if attention_mask is None:
        return None
    mask = ops.cast(ops.convert_to_tensor(attention_mask), "bool")
    if len(mask.shape) == 2:
        mask = mask[None]
    # A column for each key, also where one was given for all.
    return ops.logical_and(mask, ops.ones((ops.shape(keys)[1],), dtype="bool"))[:, None]
