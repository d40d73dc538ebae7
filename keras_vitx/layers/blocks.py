"""Blocks of a transformer. A block is given its attention and its MLP."""

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.regularization import DropPath, LayerScale


@register
class Block(Layer):
    r"""A pre-norm residual block.

    $$x \leftarrow x + d_1(\gamma_1 \odot \mathrm{attention}(\eta_1(x))), \qquad
    x \leftarrow x + d_2(\gamma_2 \odot \mathrm{mlp}(\eta_2(x)))$$
    with $\eta$ LayerNorm, $\gamma$ LayerScale and $d$ stochastic depth.

    Input and output: `(batch, tokens, dim)`; with `return_attention_scores=True`
    a pair of it and the maps of the attention.

    Args:
        attention: A layer on tokens that takes `return_attention_scores`.
        mlp: A layer on tokens.
        layer_scale: Start of $\gamma$, a number or an initializer; None leaves it out.
        scalar_scale: One $\gamma$ a branch instead of one a channel.
        drop_path: Rate of stochastic depth.
        epsilon: Epsilon of the norms.
    """

    varying = ("drop_path",)

    def __init__(
        self,
        attention: keras.layers.Layer,
        mlp: keras.layers.Layer,
        layer_scale: float | keras.initializers.Initializer | None = None,
        scalar_scale: bool = False,
        drop_path: float = 0.0,
        epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.attention = attention
        self.mlp = mlp
        self.layer_scale = layer_scale
        self.scalar_scale = scalar_scale
        self.drop_path = drop_path
        self.epsilon = epsilon
        # The parts have the checkpoints' names, whatever the caller called them.
        attention.name = "attn"
        mlp.name = "mlp"
        dtype = self.dtype_policy
        self.norm1 = keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype, name="norm1")
        self.norm2 = keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype, name="norm2")
        self.drop_path1 = DropPath(drop_path, dtype=dtype, name="drop_path1")
        self.drop_path2 = DropPath(drop_path, dtype=dtype, name="drop_path2")
        self.ls1 = self.ls2 = None
        if layer_scale is not None:
            self.ls1 = LayerScale(layer_scale, scalar_scale, dtype=dtype, name="ls1")
            self.ls2 = LayerScale(layer_scale, scalar_scale, dtype=dtype, name="ls2")

    def build(self, input_shape):
        parts = (self.norm1, self.attention, self.ls1, self.norm2, self.mlp, self.ls2)
        for part in parts:
            if part is not None:
                part.build(input_shape)

    def attend(self, x, return_attention_scores=False):
        """Return the attention branch before its weight, and its maps or None."""
        y = self.attention(self.norm1(x), return_attention_scores=return_attention_scores)
        return y if return_attention_scores else (y, None)

    def add_branches(self, x, attended, training):
        """Add both branches to `x`, given the output of the attention."""
        x = x + self.drop_path1(_weigh(self.ls1, attended), training=training)
        return x + self.drop_path2(_weigh(self.ls2, self.mlp(self.norm2(x))), training=training)

    def compute_output_spec(self, x, training=False, return_attention_scores=False):
        """Return the shape of `x`, without the seconds a block that tracing all of it takes."""
        if return_attention_scores:
            return super().compute_output_spec(x, return_attention_scores=True)
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def call(self, x, training=False, return_attention_scores=False):
        attended, maps = self.attend(x, return_attention_scores)
        x = self.add_branches(x, attended, training)
        return (x, maps) if return_attention_scores else x


@register
class ClassBlock(Block):
    r"""A block that updates the class tokens only (CaiT, Section 3).

    As `Block`, with an attention that gives one output a class token
    (`ClassAttention`); the patches pass unchanged.

    Input and output: `(batch, class tokens + patches, dim)`, class tokens first.
    """

    def call(self, x, training=False, return_attention_scores=False):
        attended, maps = self.attend(x, return_attention_scores)
        tokens = self.attention.num_class_tokens
        updated = self.add_branches(x[:, :tokens], attended, training)
        x = ops.concatenate([updated, x[:, tokens:]], axis=1)
        return (x, maps) if return_attention_scores else x


def _weigh(scale, branch):
    return branch if scale is None else scale(branch)
