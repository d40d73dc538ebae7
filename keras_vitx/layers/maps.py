"""Layers over attention maps: maps in, maps out.

A map layer takes and gives a tensor `(batch, heads, queries, keys)`. It stands
in `Attention(on_logits=[...])`, before the softmax, or in
`Attention(on_weights=[...])`, after it.
"""

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register


@register
class HeadMixing(Layer):
    r"""A learned linear mix of the heads: $A'_i = \sum_j M_{ij} A_j + b_i$.

    Twice in an attention, before and after the softmax, it makes talking heads
    (CaiT, Section 4.3, after Shazeer et al.).

    Input and output: `(batch, heads, queries, keys)`. The kernel `M` is
    `(heads out, heads in)`, the bias `(heads,)`.

    Args:
        use_bias: Whether `b` is there. Before a softmax it has no effect (it is
            constant along the keys) and its gradient is zero; public
            checkpoints hold one all the same.
    """

    def __init__(self, use_bias: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.use_bias = use_bias

    def build(self, input_shape):
        heads = input_shape[1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(heads, heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )
        self.bias = (
            self.add_weight(name="bias", shape=(heads,), initializer="zeros")
            if self.use_bias
            else None
        )

    def call(self, maps):
        batch, heads, queries, keys = ops.shape(maps)
        # Heads stay first: one batched product over (queries x keys) columns,
        # several times faster than moving the heads last for a Dense.
        kernel = ops.broadcast_to(self.kernel, (batch, heads, heads))
        mixed = ops.matmul(kernel, ops.reshape(maps, (batch, heads, queries * keys)))
        if self.bias is not None:
            mixed = mixed + ops.expand_dims(self.bias, -1)
        return ops.reshape(mixed, (batch, heads, queries, keys))
