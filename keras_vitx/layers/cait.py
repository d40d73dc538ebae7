"""CaiT's layers: talking heads, attention and blocks of the class tokens."""

from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import register
from keras_vitx.layers.block import Block
from keras_vitx.layers.maps import HeadMixing


def TalkingHeadsAttention(num_heads: int, **kwargs) -> Attention:
    """Attention with a linear mix of the heads before and after the softmax (CaiT, Section 4.3).

    The mixes are named `proj_l` and `proj_w`, as in the public checkpoints. The arguments are those
    of `Attention`.
    """
    dtype = kwargs.get("dtype")
    before = HeadMixing(name="proj_l", dtype=dtype)
    after = HeadMixing(name="proj_w", dtype=dtype)
    return Attention(num_heads, on_logits=[before], on_weights=[after], **kwargs)


@register
class ClassAttention(Attention):
    r"""Attention from the class tokens to all tokens (CaiT, Section 3, Equations 5-9).

    With $z = [x_\text{class}, x_\text{patches}]$: $Q = x_\text{class} W_q + b_q$,
    $K = z W_k + b_k$, $V = z W_v + b_v$, then as in `Attention`. The cost is linear in the number
    of tokens.

    Input: `(batch, class tokens + patches, dim)`, class tokens first. Output:
    `(batch, class tokens, dim)`; maps and mask have a row per class token.

    Args:
        num_heads: Number of heads.
        num_class_tokens: Number of leading tokens that have queries: 1, or 2 with a distillation
            token (Table B.1).
        class_in_keys: Whether keys and values include the class tokens; False is
            $z = x_\text{patches}$ of Appendix B.
        **kwargs: Further arguments of `Attention`.
    """

    def __init__(
        self, num_heads: int, num_class_tokens: int = 1, class_in_keys: bool = True, **kwargs
    ):
        super().__init__(num_heads, **kwargs)
        self.num_class_tokens = num_class_tokens
        self.class_in_keys = class_in_keys

    def projections(self, x, training=False):
        x_class = x[:, : self.num_class_tokens]
        z = x if self.class_in_keys else x[:, self.num_class_tokens :]
        pairs = ((self.q, x_class), (self.k, z), (self.v, z))
        return [self.split_heads(self.run(layer, tokens, training)) for layer, tokens in pairs]

    def build_projections(self, input_shape):
        queries = (None, self.num_class_tokens, input_shape[-1])
        self.q = self.dense(self.width, "q", queries, self.qkv_bias)
        self.k = self.dense(self.width, "k", input_shape, self.qkv_bias)
        self.v = self.dense(self.value_width, "v", input_shape, self.qkv_bias)

    def maps_shape(self, tokens):
        keys = tokens
        if tokens is not None and not self.class_in_keys:
            keys = tokens - self.num_class_tokens
        return (None, self.num_heads, self.num_class_tokens, keys)


@register
class ClassBlock(Block):
    r"""A block that updates the class tokens only; the patches pass unchanged (CaiT, Section 3).

    Like `Block`, with an attention that returns one output per class token (`ClassAttention`).

    Input and output: `(batch, class tokens + patches, dim)`, class tokens first. An
    `attention_mask` is that of the attention, `(batch, class tokens, keys)`.
    """

    def build(self, input_shape):
        self.attention.build(input_shape)
        self.mlp.build((None, self.attention.num_class_tokens, input_shape[-1]))
        super().build(input_shape)

    def call(self, x, training=False, attention_mask=None):
        count = self.attention.num_class_tokens
        y = self.run(self.norm1, x)
        y = self.run(self.attention, y, training, attention_mask=attention_mask)
        z = x[:, :count] + self.run_all([self.ls1, self.drop_path1], y, training)
        y = self.run(self.mlp, self.run(self.norm2, z), training)
        z = z + self.run_all([self.ls2, self.drop_path2], y, training)
        return ops.concatenate([z, x[:, count:]], axis=1)
