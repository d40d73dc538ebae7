"""Multi-head self-attention, modified by the layers it is given, and class attention."""

from collections.abc import Sequence

import keras

from keras_vitx.layers import eager as ops
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.fast import attention, has_fused_attention, linear, softmax
from keras_vitx.layers.maps import HeadMixing, ReAttention, Refinement
from keras_vitx.layers.masking import as_pairs, hidden, masked


@register
class Attention(Layer):
    r"""Multi-head self-attention with layers over its maps.

    $$Q, K, V = x W_{qkv} + b_{qkv}, \qquad
    A = w(\mathrm{softmax}(l(Q K^\top / \sqrt d))), \qquad y = A V W_o + b_o,$$
    where $d$ is the size of a head, $l$ are the layers of `on_logits` and $w$ those of
    `on_weights`, in order. The softmax is computed in float32 in every precision. Layers of
    `on_weights` may change the number of maps; there is one value head per final map.
    If both lists are empty, no dropout applies and the maps are not requested, the backend's
    fused attention runs instead.

    Input: `(batch, tokens, dim)`. Output: the same shape; with
    `return_attention_scores=True`, a pair of it and the maps that multiplied the values,
    `(batch, heads, tokens, tokens)`.

    `attention_mask` is boolean and broadcastable to `(batch, queries, keys)`, True where a
    query may attend a key, as in `keras.layers.MultiHeadAttention`; a mask of padding
    `(batch, keys)` is passed as `mask[:, None, :]`. The softmax runs over the allowed keys, and
    the masked entries of the maps are 0 in all that the layers of `on_logits` and `on_weights`
    receive and return, also after a bias or a BatchNormalization, which would shift them. The
    maps of a query without an allowed key are 0. Two limits: a convolution over maps reads the
    rows of neighbouring queries, so that only a mask of the padded queries, too,
    `mask[:, :, None] & mask[:, None, :]`, keeps padding out of it; and the statistics of a
    BatchNormalization include the masked entries in training. With that mask, the layer gives
    a padded sequence at inference what it gives the sequence alone.

    A subclass overrides the step in which it differs: `projections` (to queries, keys and
    values), `logits_of`, `weights_of` (the maps before `on_weights`), `maps_of`.

    Args:
        num_heads: Number of query and key heads.
        head_size: Width of a head; None is `dim / num_heads`.
        on_input: Layers over tokens, run before the projections.
        on_logits: Layers over maps, run before the softmax.
        on_weights: Layers over maps, run after the softmax.
        on_output: Layers over tokens, run after the output projection.
        qkv_bias: Whether the projections to queries, keys and values have a bias.
        dropout: Dropout rate of the maps.
        proj_dropout: Dropout rate of the output projection.

    Raises:
        ValueError: at build, when `num_heads` does not divide `dim`; at the call, when
            `attention_mask` has another shape.

    Attributes:
        reads_maps: Whether the input is a pair of tokens and carried maps.
        computes_maps: Whether the layer computes maps of its own.
    """

    reads_maps, computes_maps = False, True

    def __init__(
        self,
        num_heads: int,
        head_size: int | None = None,
        on_input: Sequence[keras.layers.Layer] = (),
        on_logits: Sequence[keras.layers.Layer] = (),
        on_weights: Sequence[keras.layers.Layer] = (),
        on_output: Sequence[keras.layers.Layer] = (),
        qkv_bias: bool = True,
        dropout: float = 0.0,
        proj_dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_size = head_size
        self.on_input = list(on_input)
        self.on_logits = list(on_logits)
        self.on_weights = list(on_weights)
        self.on_output = list(on_output)
        self.qkv_bias = qkv_bias
        self.dropout = dropout
        self.proj_dropout = proj_dropout
        self.attn_drop = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.proj_drop = keras.layers.Dropout(proj_dropout, dtype=self.dtype_policy)

    def call(self, x, training=False, return_attention_scores=False, attention_mask=None):
        x, carried = x if self.reads_maps else (x, None)
        around = self.mask_around(attention_mask)
        x = self.run_all(self.on_input, x, training, around)
        query, key, value = self.projections(x, training)
        mask = attention_mask
        if mask is not None:
            mask = as_pairs(mask, value if query is None else query, value)[:, None]
        if return_attention_scores or not self.can_fuse(training):
            maps = self.maps_of(query, key, carried, training, mask)
            y = self.aggregate(maps, value, training)
        else:
            maps, y = None, self.fused(query, key, value, training, mask)
        y = self.project(y, training, around)
        return (y, maps) if return_attention_scores else y

    def mask_around(self, attention_mask):
        """Return the mask for the layers of `on_input` and `on_output`, over all tokens."""
        return attention_mask

    def projections(self, x, training=False):
        """Return the queries, keys and values of the tokens `x`.

        Each is `(batch, tokens, heads, size)`; the number of value heads may differ.
        """
        x, heads = self.split_heads(linear(self.qkv, x, training)), self.num_heads
        if self.value_width == self.width:
            # The gradient of a split is one concatenation; that of slices, a sum of three tensors.
            return ops.split(x, 3, axis=2)
        # Under PyTorch, a split at given indices synchronizes with the GPU.
        return x[:, :, :heads], x[:, :, heads : 2 * heads], x[:, :, 2 * heads :]

    def maps_of(self, query, key, carried, training=False, mask=None):
        """Return the maps that multiply the values, `(batch, heads, queries, keys)`.

        Args:
            query: `(batch, queries, heads, size)`.
            key: `(batch, keys, heads, size)`.
            carried: The carried maps of an earlier block if `reads_maps`, else None.
            training: Whether this is a training pass.
            mask: `(batch or 1, 1, queries or 1, keys)`, boolean, or None.
        """
        maps = self.weights_of(query, key, training, mask)
        return self.run_over_maps(self.on_weights, maps, training, mask)

    def weights_of(self, query, key, training=False, mask=None):
        """Return the maps after the softmax, `(batch, heads, queries, keys)`."""
        logits = self.logits_of(query, key)
        logits = self.run_over_maps(self.on_logits, logits, training, mask)
        return masked(self.softmax(hidden(logits, mask)), mask)

    def run_over_maps(self, layers, maps, training=False, mask=None):
        """Run map layers, one after another; the masked entries of all that they see are 0."""
        if mask is None:
            return self.run_all(layers, maps, training)
        for layer in layers:
            maps = self.run_all([layer], masked(maps, mask), training, mask)
        return masked(maps, mask)

    def logits_of(self, query, key):
        """Return the scaled dot products of queries and keys, `(batch, heads, queries, keys)`."""
        # There are fewer entries in the queries than in the logits.
        query = ops.transpose(query * self.size**-0.5, (0, 2, 1, 3))
        return ops.matmul(query, ops.transpose(key, (0, 2, 3, 1)))

    def softmax(self, logits):
        """Apply the softmax over the keys, in float32."""
        return ops.cast(softmax(logits), self.compute_dtype)

    def aggregate(self, maps, value, training=False):
        """Multiply the maps with the values, `(batch, queries, heads, size)`."""
        maps = self.run_in_training(self.attn_drop, maps, training and self.dropout)
        y = ops.matmul(maps, ops.transpose(value, (0, 2, 1, 3)))
        return ops.transpose(y, (0, 2, 1, 3))

    def project(self, y, training=False, attention_mask=None):
        """Project the aggregated values of all heads to the output of the layer."""
        batch, tokens, heads, size = ops.shape(y)
        y = linear(self.proj, ops.reshape(y, (batch, tokens, heads * size)), training)
        y = self.run_in_training(self.proj_drop, y, training and self.proj_dropout)
        return self.run_all(self.on_output, y, training, attention_mask)

    def can_fuse(self, training=False):
        """Return whether `fused` may run: no layer and no dropout needs the maps."""
        needs_maps = self.on_logits or self.on_weights or (training and self.dropout)
        return not needs_maps and has_fused_attention(self.compute_dtype)

    def fused(self, query, key, value, training=False, mask=None):
        """Return `aggregate(weights_of(query, key), value)` without storing the maps."""
        return attention(query, key, value, training, mask)

    def build(self, input_shape):
        tokens = input_shape[1]
        self.build_around(input_shape, queries=tokens, keys=tokens)
        self.qkv = self.dense(2 * self.width + self.value_width, "qkv", self.qkv_bias)
        self.qkv.build(input_shape)

    def build_around(self, input_shape, queries: int | None, keys: int | None) -> None:
        """Build everything except the projections to queries, keys and values.

        Sets `size`, `width` (of queries and of keys), `value_width` and `maps_given`,
        the number of heads of the maps that a block carries on to the next.
        """
        dim = input_shape[-1]
        if self.head_size is None and dim % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the tokens. "
                f"Received: num_heads={self.num_heads}, width={dim}."
            )
        maps = (None, self.num_heads, queries, keys)
        for layer in (*self.on_logits, *self.on_weights):
            layer.build(maps)
            maps = tuple(layer.compute_output_spec(keras.KerasTensor(maps)).shape)
        for layer in (*self.on_input, *self.on_output):
            layer.build(input_shape)
        self.size = self.head_size or dim // self.num_heads
        self.width = self.num_heads * self.size
        self.value_width = maps[1] * self.size
        self.maps_given = maps[1] if self.computes_maps else self.num_heads
        self.proj = self.dense(dim, "proj")
        self.proj.build((None, queries, self.value_width))

    def split_heads(self, x):
        """Reshape `(batch, tokens, heads * size)` to `(batch, tokens, heads, size)`."""
        batch, tokens, width = ops.shape(x)
        return ops.reshape(x, (batch, tokens, width // self.size, self.size))


def TalkingHeadsAttention(num_heads: int, **kwargs) -> Attention:
    """Attention with a linear mix of the heads before and after the softmax.

    CaiT, Section 4.3. The two mixes are named `proj_l` and `proj_w`, as in the
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


def DeepAttention(
    num_heads: int, map_scale: float = 1.0, normalize: bool = True, **kwargs
) -> Attention:
    """Attention with `ReAttention` over its maps (DeepViT, Section 4.2).

    Args:
        num_heads: Number of heads.
        map_scale: As in `ReAttention`.
        normalize: As in `ReAttention`.
        **kwargs: Further arguments of `Attention`.
    """
    layer = ReAttention(map_scale, normalize, name="re_attention", dtype=kwargs.get("dtype"))
    return Attention(num_heads, on_weights=[layer], **kwargs)


def RefinedAttention(
    num_heads: int,
    expansion: int = 3,
    kernel_size: int = 3,
    reduction: bool = True,
    constraint: str | None = None,
    grid: tuple[int, int] | None = None,
    **kwargs,
) -> Attention:
    """Attention with `Refinement`, the paper's refiner, over its maps.

    Refiner, Section 3.4. With `expansion=1` and `kernel_size=1`, this is talking
    heads after the softmax only.

    Args:
        num_heads: Number of heads.
        expansion: As in `Refinement`.
        kernel_size: As in `Refinement`.
        reduction: As in `Refinement`.
        constraint: As in `Refinement`.
        grid: As in `Refinement`.
        **kwargs: Further arguments of `Attention`.
    """
    layer = Refinement(
        expansion,
        kernel_size,
        reduction,
        constraint,
        grid,
        name="refinement",
        dtype=kwargs.get("dtype"),
    )
    return Attention(num_heads, on_weights=[layer], **kwargs)


@register
class ClassAttention(Attention):
    r"""Attention from the class tokens to all tokens (CaiT, Section 3, Equations 5-9).

    With $z = [x_\text{class}, x_\text{patches}]$:
    $Q = x_\text{class} W_q + b_q$, $K = z W_k + b_k$, $V = z W_v + b_v$, then as in
    `Attention`. The cost is linear in the number of tokens.

    Input: `(batch, class tokens + patches, dim)`, class tokens first.
    Output: `(batch, class tokens, dim)`; with `return_attention_scores=True`, a pair of it
    and the maps `(batch, heads, class tokens, keys)`. An `attention_mask` is broadcastable to
    `(batch, class tokens, keys)`; the layers of `on_input` and `on_output` are not masked.

    Args:
        num_heads: Number of heads. It must divide `dim`.
        num_class_tokens: Number of leading tokens that have queries: 1, or 2 with a
            distillation token (Table B.1).
        class_in_keys: Whether keys and values include the class tokens; False is
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

    def mask_around(self, attention_mask):
        # The queries are other tokens than the keys.
        return None

    def projections(self, x, training=False):
        asking = x[:, : self.num_class_tokens]
        asked = x if self.class_in_keys else x[:, self.num_class_tokens :]
        pairs = ((self.q, asking), (self.k, asked), (self.v, asked))
        return [self.split_heads(linear(layer, tokens, training)) for layer, tokens in pairs]

    def build(self, input_shape):
        keys = input_shape[1]
        if keys is not None and not self.class_in_keys:
            keys -= self.num_class_tokens
        self.build_around(input_shape, queries=self.num_class_tokens, keys=keys)
        self.q = self.dense(self.width, "q", self.qkv_bias)
        self.k = self.dense(self.width, "k", self.qkv_bias)
        self.v = self.dense(self.value_width, "v", self.qkv_bias)
        for child in (self.q, self.k, self.v):
            child.build(input_shape)
