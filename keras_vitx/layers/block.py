"""Transformer blocks. A block takes its attention and its MLP as arguments."""

from typing import Literal

import keras

from keras_vitx.checks import PositiveFloat, check, check_argument
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.regularization import DropPath, LayerScale

NORMS = {"layer": keras.layers.LayerNormalization, "rms": keras.layers.RMSNormalization}


@register
class Block(Layer):
    r"""A pre-norm residual block.

    $$x \leftarrow x + d_1(\gamma_1 \odot \mathrm{attention}(\eta_1(s x))) / s, \qquad
    x \leftarrow x + d_2(\gamma_2 \odot \mathrm{mlp}(\eta_2(s x))) / s$$
    with $\eta$ a norm, $\gamma$ LayerScale and $d$ stochastic depth.

    Input and output: `(batch, tokens, dim)`; an `attention_mask`, broadcastable to
    `(batch, tokens, tokens)`, is that of the attention.

    A subclass may override `call`, for another order of the same layers. `kv.analysis.trace` takes
    the outputs of `ls1` and `ls2` as the branches.

    Args:
        attention: A layer on tokens. `kv.analysis` sees the maps of an `Attention`, and what any
            other records as "softmax" and "maps" (`keras_vitx.layers.record`).
        mlp: A layer on tokens.
        layer_scale: Initial value of $\gamma$, a number or an initializer; None is no $\gamma$.
        scalar_scale: One $\gamma$ per branch instead of one per channel.
        residual_scale: $s$, above 0; 0.5 in DeepViT-S, DeepViT-L and Refined-ViT.
        drop_path: Rate of stochastic depth.
        epsilon: Epsilon of the norms.
        residual_dtype: Precision in which the tokens are summed and normalized: None, that of the
            layer, or `"float32"`, also under a policy of half precision. There, a sum
            $x + \gamma b$ rounds to $x$ while $\gamma$ is near its start.
        norm: $\eta$: `"layer"`, LayerNorm, or `"rms"`, RMSNorm (AIMv2).
        post_norm: Whether norms are behind attention and MLP, before $\gamma$ (EVA-02-CLIP-E).
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        mlp: keras.layers.Layer,
        layer_scale: float | keras.initializers.Initializer | None = None,
        scalar_scale: bool = False,
        residual_scale: float = 1.0,
        drop_path: float = 0.0,
        epsilon: float = 1e-6,
        residual_dtype: str | None = None,
        norm: str = "layer",
        post_norm: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_argument("attention", attention, keras.layers.Layer)
        check_argument("mlp", mlp, keras.layers.Layer)
        check_argument("residual_dtype", residual_dtype, Literal["float32"] | None)
        check_argument("norm", norm, Literal[*NORMS])
        check_argument("residual_scale", residual_scale, PositiveFloat)
        self.attention = attention
        self.mlp = mlp
        self.layer_scale = layer_scale
        self.scalar_scale = scalar_scale
        self.residual_scale = residual_scale
        self.residual_dtype = residual_dtype
        self.norm = norm
        self.epsilon = epsilon
        self.post_norm = post_norm
        is_plain = residual_scale == 1 and type(self).call is Block.call
        check(is_plain or not post_norm, "`post_norm` must be False in other blocks.", post_norm)
        # The checkpoints' names, whatever the layers were named.
        attention.name = "attn"
        mlp.name = "mlp"
        dtype, residual = self.dtype_policy, residual_dtype or self.dtype_policy
        # Normalizing s x with epsilon e is the same as normalizing x with e / s².
        form = {"epsilon": epsilon / residual_scale**2, "dtype": residual}
        self.norm1 = NORMS[norm](**form, name="norm1")
        self.norm2 = NORMS[norm](**form, name="norm2")
        scale = {"scalar": scalar_scale, "divisor": residual_scale, "dtype": dtype}
        self.ls1 = LayerScale(layer_scale, **scale, name="ls1")
        self.ls2 = LayerScale(layer_scale, **scale, name="ls2")
        # The last layer of a branch, in the precision in which branches are added.
        self.drop_path1 = DropPath(drop_path, dtype=residual, name="drop_path1")
        self.drop_path2 = DropPath(drop_path, dtype=residual, name="drop_path2")

    @property
    def drop_path(self) -> float:
        """The rate of stochastic depth, which may be set at any time; see `DropPath.rate`."""
        return self.drop_path1.rate

    @drop_path.setter
    def drop_path(self, rate: float) -> None:
        self.drop_path1.rate = self.drop_path2.rate = rate

    @property
    def input_dtype(self) -> str:
        """The dtype to which Keras casts the inputs."""
        return self.residual_dtype or self.compute_dtype

    def build(self, input_shape):
        layers = (self.attention, self.mlp, self.norm1, self.norm2)
        # Also those without weights: Keras only quantizes a model in which all layers are built.
        for layer in (*layers, self.ls1, self.ls2, self.drop_path1, self.drop_path2):
            if not layer.built:
                layer.build(input_shape)

    def call(self, x, training=False, attention_mask=None):
        y = self.branch(self.attention, self.norm1, x, training, attention_mask=attention_mask)
        x = x + self.run_all([self.ls1, self.drop_path1], y, training)
        y = self.branch(self.mlp, self.norm2, x, training)
        return x + self.run_all([self.ls2, self.drop_path2], y, training)

    def branch(self, layer, norm, x, training=False, **mask):
        """Return the output of a layer and its norm, in their order."""
        if self.post_norm:
            return self.run(norm, self.run(layer, x, training, **mask))
        return self.run(layer, self.run(norm, x), training, **mask)

    def compute_output_spec(self, x, training=False, attention_mask=None):
        # Without tracing the block, which would take seconds.
        return keras.KerasTensor(x.shape, dtype=self.input_dtype)
