"""Layers over attention maps `(batch, heads, queries, keys)`."""

import keras

from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.initializers import normal, start_from, uniform


class MapLayer(Layer):
    """A layer over attention maps, for `on_logits` and `on_weights` of `Attention`.

    A subclass writes `call(maps)`. Any Keras layer that keeps the shape serves as well; this class
    gives the output's shape where the number of heads changes.

    Input: `(batch, heads, queries, keys)`. Output: the same with `heads_of(heads)` heads.
    """

    def heads_of(self, heads: int) -> int:
        """Return the number of output heads for `heads` input heads."""
        return heads

    def compute_output_shape(self, input_shape):
        batch, heads, queries, keys = input_shape
        return (batch, self.heads_of(heads), queries, keys)


@register
class HeadMixing(MapLayer):
    r"""A learned linear mix of the heads: $A'_i = \sum_j M_{ij} A_j + b_i$.

    Before and after the softmax, it makes talking heads (CaiT, Section 4.3, after Shazeer et al.).
    With more output than input heads it is Refiner's attention expansion, with fewer its reduction
    (Sections 3.2, 3.4).

    Input: `(batch, heads, queries, keys)`. Output: the same with `heads_out` heads.

    Args:
        use_bias: Whether there is a `b`. Before a softmax it has no effect (it is constant over the
            keys) and its gradient is zero, but public checkpoints have one.
        heads_out: Number of output heads; None is the number of input heads.
        kernel_initializer: Initializer of `M`; None is a normal of stddev 0.02, as for the Dense
            layers that mix heads in the released CaiT.
        bias_initializer: Initializer of `b`.
    """

    def __init__(
        self,
        use_bias: bool = True,
        heads_out: int | None = None,
        kernel_initializer: str | keras.initializers.Initializer | None = None,
        bias_initializer: str | keras.initializers.Initializer = "zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.heads_out = heads_out
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer

    def heads_of(self, heads):
        return self.heads_out or heads

    def build(self, input_shape):
        heads_in = input_shape[1]
        heads = self.heads_of(heads_in)
        start = start_from(self.kernel_initializer or normal())
        self.kernel = self.add_weight(name="kernel", shape=(heads, heads_in), initializer=start)
        self.bias = None
        if self.use_bias:
            start = start_from(self.bias_initializer)
            self.bias = self.add_weight(name="bias", shape=(heads,), initializer=start)

    def call(self, maps):
        return ops.mix_heads(self.kernel, maps, self.bias)


def convolution_1x1(
    heads: int, heads_out: int, use_bias: bool, dtype: keras.DTypePolicy, name: str
) -> HeadMixing:
    """Return a `HeadMixing` that starts like the released 1 x 1 convolutions over `heads` maps."""
    start = uniform(heads)
    return HeadMixing(use_bias, heads_out, start, start, dtype=dtype, name=name)


def MapNormalization(**kwargs) -> keras.layers.BatchNormalization:
    """Batch normalization of maps per head (DeepViT, Section 4.2), with PyTorch's defaults."""
    return keras.layers.BatchNormalization(axis=1, momentum=0.9, epsilon=1e-5, **kwargs)
