"""Sharing maps between blocks, as in DeepViT and Refined-ViT, and their similarity."""

from typing import Any, Literal

import keras

from keras_vitx.checks import check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import register
from keras_vitx.layers.block import Block


@register
class SharedAttention(Attention):
    r"""Attention that reuses the maps of an earlier block, without queries and keys.

    $$V = x W_v + b_v, \qquad y = w(A_\text{shared}) V W_o + b_o,$$
    with $w$ the layers of `on_weights`. With `ReAttention` it is the reuse of maps in DeepViT,
    Appendix A, Equation 5; with a refiner, the second of Refined-ViT's two kinds of block. An
    `attention_mask` masks $A_\text{shared}$, whose rows are not normalized again.

    Input: a pair of tokens `(batch, tokens, dim)` and shared maps `(batch, heads, tokens, tokens)`.
    Output: as of `Attention`, `(batch, tokens, dim)`.

    The arguments are those of `Attention`, with `num_heads` of the shared maps and no effect of
    `on_logits`.
    """

    reads_maps, computes_maps = True, False

    def build_projections(self, input_shape):
        self.v = self.dense(self.value_width, "v", input_shape, self.qkv_bias)

    def projections(self, x, training=False):
        return None, None, self.split_heads(self.run(self.v, x, training))

    def weights_of(self, query, key, training=False, mask=None):
        return None


@register
class AccumulatingAttention(Attention):
    r"""Attention that adds the maps of an earlier block to its own.

    $$A = w(\mathrm{softmax}(l(Q K^\top / \sqrt d))) + A_\text{shared} / \sqrt d$$
    with $d$ the size of a head: the first of the two kinds of block of the released Refined-ViT.
    The paper does not mention this sum. An `attention_mask` masks both terms.

    Input: a pair of tokens `(batch, tokens, dim)` and shared maps `(batch, heads, tokens, tokens)`.
    Output: as of `Attention`, `(batch, tokens, dim)`.

    The arguments are those of `Attention`.
    """

    reads_maps = True

    def maps_of(self, weights, shared, training=False, mask=None):
        maps = super().maps_of(weights, shared, training, mask)
        return maps + ops.zero_masked(shared, mask) * self.size**-0.5


@register
class SharedMapsBlock(Block):
    r"""A block that shares attention maps with the next block.

    Like `Block`. It emits what `attention.shared_of` returns: the maps that the attention computed,
    or, if it computes none (`SharedAttention`), those that it received; values or other tensors, if
    a subclass of `Attention` says so.

    Input: tokens `(batch, tokens, dim)`; with `receives_maps`, a pair of them and maps
    `(batch, heads, tokens, tokens)`. Output: such a pair with `emits_maps`, else the tokens; with
    `return_attention_scores=True`, a pair of that and the maps of the attention.

    Args:
        attention: As in `Block`. `SharedAttention` and `AccumulatingAttention` receive the shared
            maps, others only the tokens.
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

    def received(self, x):
        if not self.receives_maps:
            return x, None
        x, shared = x
        # With a residual dtype, Keras casts them, too.
        return x, ops.cast(shared, self.compute_dtype)

    def attend(self, x, shared, training, attention_mask, returns_maps):
        compares = training and self.similarity
        returns_maps = returns_maps or self.emits_maps or compares
        y, intermediates = super().attend(x, shared, training, attention_mask, returns_maps)
        if compares:
            maps = intermediates["maps" if self.similarity_of == "used" else "shared"]
            self.add_loss(self.similarity * map_similarity(maps, shared, self.similarity_over))
        return y, intermediates

    def returned(self, x, tokens, shared):
        return (x, shared) if self.emits_maps else x


SIMILARITY_AXES = {"heads": 1, "queries": 2}


def map_similarity(maps: Any, others: Any, over: str = "heads") -> Any:
    """Return the mean cosine similarity of the maps of two blocks, `(batch, heads, queries, keys)`.

    `over` is as in `SharedMapsBlock`. It is the constant 1 where both are the same tensor.
    """
    if maps is others:
        return ops.ones((), "float32")
    axis = SIMILARITY_AXES[over]
    maps, others = map(ops.at_least_float32, (maps, others))
    norms = (ops.maximum(ops.sum(each**2, axis), 1e-16) for each in (maps, others))
    scale, other_scale = map(ops.rsqrt, norms)
    return ops.mean(ops.sum(maps * others, axis) * scale * other_scale)


def check_similarity(over: str, of: str) -> None:
    """Check over which axis maps are compared, and which."""
    check_argument("similarity_over", over, Literal[tuple(SIMILARITY_AXES)])
    check_argument("similarity_of", of, Literal["used", "emitted"])
