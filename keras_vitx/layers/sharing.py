"""Sharing maps between blocks, as in DeepViT and Refined-ViT, and their similarity."""

from typing import Any, Literal

import keras

from keras_vitx.checks import check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention, as_mask
from keras_vitx.layers.base import register
from keras_vitx.layers.block import Block
from keras_vitx.layers.recording import Tensor, is_recording


class SharingAttention(Attention):
    """Attention that receives what the block before passed on, and says what it passes on.

    Input: a pair of tokens `(batch, tokens, dim)` and what was passed on, maps `(batch, heads,
    tokens, tokens)` unless a subclass says otherwise; the tokens alone where `reads_maps` is False.
    Output: as of `Attention`; with `return_shared=True`, a triple of it, the maps and what is
    passed on.

    A subclass overrides the methods below. It runs in a `SharedMapsBlock`.
    """

    reads_maps = True
    fused = None

    def call(
        self,
        x,
        training=False,
        return_attention_scores=False,
        attention_mask=None,
        return_shared=False,
    ):
        x, shared = x if self.reads_maps else (x, None)
        x = self.run_all(self.on_input, x, training)
        query, key, value = self.projections(x, training)
        query, key = self.run_all(self.on_queries_keys, (query, key), training)
        if self.reads_maps:
            query, key, value = self.with_shared(query, key, value, shared)
        mask = as_mask(attention_mask, value)

        def maps_of_some(value, shared, query, key, mask):
            return self.maps_with(shared, query, key, training, mask)

        inputs = value, shared, query, key, mask
        whole = training or is_recording()
        maps = maps_of_some(*inputs) if whole else ops.by_images(maps_of_some, *inputs)
        y = self.aggregate(maps, value, training)
        y = self.project(self.gated(y, x, training), training)
        if return_shared:
            return y, maps, self.shared_of(maps, value, shared)
        return (y, maps) if return_attention_scores else y

    def with_shared(self, query, key, value, shared):
        """Return queries, keys and values in view of what the block before passed on."""
        return query, key, value

    def maps_with(self, shared, query, key, training=False, mask=None):
        """Return `maps_of(query, key)` in view of what the block before passed on."""
        return self.maps_of(query, key, training, mask)

    def shared_of(self, maps, value, shared):
        """Return what the block passes on to the next: its maps."""
        return maps

    def shared_shape(self, tokens):
        """Return the shape of what the block passes on, for a number of tokens or None."""
        return (None, self.value_width // self.size, tokens, tokens)

    def build(self, input_shape):
        super().build(input_shape[0] if self.reads_maps else input_shape)


@register
class SharedAttention(SharingAttention):
    r"""Attention that reuses the maps of an earlier block, without queries and keys.

    $$V = x W_v + b_v, \qquad y = w(A_\text{shared}) V W_o + b_o,$$
    with $w$ the layers of `on_weights`. With `ReAttention` it is the reuse of maps in DeepViT,
    Appendix A, Equation 5; with a refiner, the second of Refined-ViT's two kinds of block. An
    `attention_mask` masks $A_\text{shared}$, whose rows are not normalized again.

    Input: a pair of tokens `(batch, tokens, dim)` and shared maps `(batch, heads, tokens, tokens)`.
    Output: as of `Attention`, `(batch, tokens, dim)`.

    The arguments are those of `Attention`, with `num_heads` of the shared maps and no effect of
    `on_queries_keys` and `on_logits`.
    """

    def build_projections(self, input_shape):
        self.v = self.dense(self.value_width, "v", input_shape, self.qkv_bias)

    def projections(self, x, training=False):
        return None, None, self.split_heads(self.run(self.v, x, training))

    def maps_with(self, shared, query, key, training=False, mask=None):
        return self.run_over_maps(self.on_weights, shared, training, mask)

    def shared_of(self, maps, value, shared):
        return shared

    def shared_shape(self, tokens):
        return (None, self.num_heads, tokens, tokens)


@register
class AccumulatingAttention(SharingAttention):
    r"""Attention that adds the maps of an earlier block to its own.

    $$A = w(\mathrm{softmax}(l(Q K^\top / \sqrt d))) + A_\text{shared} / \sqrt d$$
    with $d$ the size of a head: the first of the two kinds of block of the released Refined-ViT.
    The paper does not mention this sum. An `attention_mask` masks both terms.

    Input: a pair of tokens `(batch, tokens, dim)` and shared maps `(batch, heads, tokens, tokens)`.
    Output: as of `Attention`, `(batch, tokens, dim)`.
    """

    def maps_with(self, shared, query, key, training=False, mask=None):
        maps = self.maps_of(query, key, training, mask)
        return maps + ops.zero_masked(shared, mask) * self.size**-0.5


@register
class SharedMapsBlock(Block):
    r"""A block that shares attention maps with the next block.

    Like `Block`. It emits the maps of its attention, or what that passes on if it is a
    `SharingAttention`: `SharedAttention`, the maps that it received.

    Input: tokens `(batch, tokens, dim)`; with `receives_maps`, a pair of them and maps
    `(batch, heads, tokens, tokens)`. Output: such a pair with `emits_maps`, else the tokens.

    Args:
        attention: An `Attention`. A `SharingAttention` receives the maps, others only the tokens.
        mlp: As in `Block`.
        receives_maps: Whether the block receives maps.
        emits_maps: Whether the block emits maps.
        similarity: $\lambda$ of DeepViT, Appendix A, Equation 6: in training, $\lambda$ times the
            similarity of this block's maps to the received ones is added to the loss.
        similarity_over: Axis of the cosine. `"heads"`: $\cos(A_{:,q,k}, B_{:,q,k})$, as in the
            released DeepViT loss; `"queries"`: $\cos(A_{h,:,k}, B_{h,:,k})$ (Section 3, Equation
            2). Both are averaged over the other axes.
        similarity_of: Which maps of this block are compared: `"used"`, those that multiply its
            values; `"emitted"`, those that it emits, as in the released Refined-ViT, whose
            similarity is 1 where the attention computes none.
        **kwargs: Further arguments of `Block`.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        mlp: keras.layers.Layer,
        receives_maps: bool = True,
        emits_maps: bool = True,
        similarity: float = 0.0,
        similarity_over: str = "heads",
        similarity_of: str = "used",
        **kwargs,
    ):
        super().__init__(attention, mlp, **kwargs)
        check_similarity(similarity_over, similarity_of)
        self.receives_maps = receives_maps
        self.emits_maps = emits_maps
        self.similarity = similarity
        self.similarity_over = similarity_over
        self.similarity_of = similarity_of
        self.is_sharing = isinstance(attention, SharingAttention)
        self.reads_maps = receives_maps and self.is_sharing and attention.reads_maps

    def build(self, input_shape):
        tokens = input_shape[0] if self.receives_maps else input_shape
        self.attention.build(input_shape if self.reads_maps else tokens)
        super().build(tokens)

    def call(self, x, training=False, attention_mask=None):
        x, shared = x if self.receives_maps else (x, None)
        if self.residual_dtype and shared is not None:  # Keras casts them, too.
            shared = ops.cast(shared, self.compute_dtype)
        y, maps, passed = self.attend(self.run(self.norm1, x), shared, training, attention_mask)
        x = x + self.run_all([self.ls1, self.drop_path1], y, training)
        y = self.run(self.mlp, self.run(self.norm2, x), training)
        x = x + self.run_all([self.ls2, self.drop_path2], y, training)
        if training and self.similarity:
            compared = maps if self.similarity_of == "used" else passed
            self.add_loss(self.similarity * map_similarity(compared, shared, self.similarity_over))
        return (x, passed) if self.emits_maps else x

    def attend(self, x, shared, training, attention_mask):
        """Return the output of the attention, its maps, and what it passes on, where needed."""
        mask = {"attention_mask": attention_mask}
        x = (x, shared) if self.reads_maps else x
        if not (self.emits_maps or (training and self.similarity)):
            return self.run(self.attention, x, training, **mask), None, None
        if self.is_sharing:
            return self.run(self.attention, x, training, return_shared=True, **mask)
        y, maps = self.run(self.attention, x, training, return_attention_scores=True, **mask)
        return y, maps, maps

    def compute_output_spec(self, x, training=False, attention_mask=None):
        tokens = x[0] if self.receives_maps else x
        y = super().compute_output_spec(tokens)
        if not self.emits_maps:
            return y
        batch, count, _ = tokens.shape
        if self.is_sharing:
            shape = self.attention.shared_shape(count)
        else:
            shape = (None, self.attention.value_width // self.attention.size, count, count)
        return y, keras.KerasTensor((batch, *shape[1:]), dtype=self.compute_dtype)


SIMILARITY_AXES = {"heads": 1, "queries": 2}


def map_similarity(maps: Tensor, others: Tensor, over: str = "heads") -> Any:
    """Return the mean cosine similarity of the maps of two blocks, `(batch, heads, queries, keys)`.

    `over` is as in `SharedMapsBlock`. It is the constant 1 where both are the same tensor.
    """
    if maps is others:
        return ops.ones((), "float32")
    axis = SIMILARITY_AXES[over]
    maps, others = map(ops.at_least_float32, (maps, others))
    norms = (ops.maximum(ops.sum(values**2, axis), 1e-16) for values in (maps, others))
    scale, other_scale = map(ops.rsqrt, norms)
    return ops.mean(ops.sum(maps * others, axis) * scale * other_scale)


def check_similarity(over: str, of: str) -> None:
    """Check over which axis maps are compared, and which."""
    check_argument("similarity_over", over, Literal[tuple(SIMILARITY_AXES)])
    check_argument("similarity_of", of, Literal["used", "emitted"])
