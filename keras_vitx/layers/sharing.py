"""Attention with maps carried from an earlier block, which are reused or added."""

from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import register
from keras_vitx.layers.fast import linear
from keras_vitx.layers.masking import masked


def check_carried(tokens, maps, num_heads: int) -> None:
    """Check the shape of the carried maps against the tokens that they aggregate.

    Raises:
        ValueError: if the number of heads or of tokens differs.
    """
    expected = (num_heads, tokens[1], tokens[1])
    if any(
        found is not None and wanted is not None and found != wanted
        for found, wanted in zip(maps[1:], expected, strict=True)
    ):
        raise ValueError(
            "The carried maps must have the shape (batch, heads, tokens, tokens) of the "
            f"attention that receives them, (None, {', '.join(map(str, expected))}). "
            f"Received: maps of shape {tuple(maps)}."
        )


@register
class SharedAttention(Attention):
    r"""Attention that reuses the maps of an earlier block, without queries and keys.

    $$V = x W_v + b_v, \qquad y = w(A_\text{carried}) V W_o + b_o,$$
    with $w$ the layers of `on_weights`. With `ReAttention` it is the reuse of maps in
    DeepViT, Appendix A, Equation 5; with a refiner, the second of Refined-ViT's two
    kinds of block. An `attention_mask` masks $A_\text{carried}$, whose rows are not
    normalized again.

    Input: a pair of tokens `(batch, tokens, dim)` and carried maps
    `(batch, heads, tokens, tokens)`. Output: `(batch, tokens, dim)`; with
    `return_attention_scores=True`, a pair of it and the maps that multiplied the values.

    Args:
        num_heads: Number of heads of the carried maps.
        **kwargs: Further arguments of `Attention`; `on_logits` has no effect.

    Raises:
        ValueError: at build, if the carried maps do not have that shape.
    """

    reads_maps, computes_maps = True, False

    def build(self, input_shape):
        tokens, maps = input_shape
        check_carried(tokens, maps, self.num_heads)
        self.build_around(tokens, queries=tokens[1], keys=tokens[1])
        self.v = self.dense(self.value_width, "v", self.qkv_bias)
        self.v.build(tokens)

    def projections(self, x, training=False):
        return None, None, self.split_heads(linear(self.v, x, training))

    def maps_of(self, query, key, carried, training=False, mask=None):
        return self.run_over_maps(self.on_weights, carried, training, mask)

    def can_fuse(self, training=False):
        return False


@register
class AccumulatingAttention(Attention):
    r"""Attention that adds the maps of an earlier block to its own.

    $$A = w(\mathrm{softmax}(l(Q K^\top / \sqrt d))) + A_\text{carried} / \sqrt d$$
    with $d$ the size of a head: the first of the two kinds of block of the released
    Refined-ViT. The paper does not mention this sum. An `attention_mask` masks both terms.

    Input: a pair of tokens `(batch, tokens, dim)` and carried maps
    `(batch, heads, tokens, tokens)`. Output: `(batch, tokens, dim)`; with
    `return_attention_scores=True`, a pair of it and the maps.

    Args:
        num_heads: Number of heads, the same as of the carried maps.
        **kwargs: Further arguments of `Attention`.

    Raises:
        ValueError: at build, if the carried maps do not have that shape.
    """

    reads_maps = True

    def build(self, input_shape):
        tokens, maps = input_shape
        check_carried(tokens, maps, self.num_heads)
        super().build(tokens)

    def maps_of(self, query, key, carried, training=False, mask=None):
        maps = super().maps_of(query, key, carried, training, mask)
        return maps + masked(carried, mask) * self.size**-0.5

    def can_fuse(self, training=False):
        return False
