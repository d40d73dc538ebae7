"""Transformer blocks. A block takes its attention and its MLP as arguments."""

from typing import Any

import keras

from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.regularization import DropPath, LayerScale


@register
class Block(Layer):
    r"""A pre-norm residual block.

    $$x \leftarrow x + d_1(\gamma_1 \odot \mathrm{attention}(\eta_1(s x))) / s, \qquad
    x \leftarrow x + d_2(\gamma_2 \odot \mathrm{mlp}(\eta_2(s x))) / s$$
    with $\eta$ LayerNorm, $\gamma$ LayerScale and $d$ stochastic depth.

    Input and output: `(batch, tokens, dim)`. With `return_attention_scores=True`, the
    output is a pair of it and the maps of the attention. An `attention_mask`, broadcastable to
    `(batch, tokens, tokens)`, is passed on to the attention.

    With `return_parts=True`, the output is a pair of it and a dictionary: `normalized`, the
    tokens that the attention reads; `softmax` and `maps`, its maps before and after
    modification, None without; `attention_branch` and `mlp_branch`, both branches as they are
    added to the tokens, before stochastic depth.

    Args:
        attention: A layer on tokens that takes `return_attention_scores`; one that
            does not (such as `TokenMixing`) has no maps.
        mlp: A layer on tokens.
        layer_scale: Initial value of $\gamma$, a number or an initializer; None is no $\gamma$.
        scalar_scale: One $\gamma$ per branch instead of one per channel.
        residual_scale: $s$; 1 is the plain block, 0.5 that of DeepViT-S, DeepViT-L
            and Refined-ViT.
        drop_path: Rate of stochastic depth.
        epsilon: Epsilon of the norms.
        residual_dtype: Precision in which the tokens are summed and normalized: None, that of
            the layer, or `"float32"`, also under a policy of half precision. There, a sum
            $x + \gamma b$ rounds to $x$ while $\gamma$ is near its start.

    Raises:
        ValueError: if `residual_scale` is not above 0, or `residual_dtype` is unknown; at the
            call, if the attention (such as `TokenMixing`) takes no `attention_mask` and is given
            one.
    """

    varying = ("drop_path",)

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
        **kwargs,
    ):
        super().__init__(**kwargs)
        if residual_dtype not in (None, "float32"):
            raise ValueError(
                f"`residual_dtype` must be None or 'float32'. Received: {residual_dtype!r}."
            )
        if residual_scale <= 0:
            raise ValueError(
                f"`residual_scale` must be above 0. Received: residual_scale={residual_scale}."
            )
        self.attention = attention
        self.mlp = mlp
        self.layer_scale = layer_scale
        self.scalar_scale = scalar_scale
        self.residual_scale = residual_scale
        self.drop_path = drop_path
        self.epsilon = epsilon
        self.residual_dtype = residual_dtype
        # The checkpoints' names, whatever the layers were named.
        attention.name = "attn"
        mlp.name = "mlp"
        dtype = self.dtype_policy
        # Normalizing s x with epsilon e is the same as normalizing x with e / s².
        norm = {"epsilon": epsilon / residual_scale**2, "dtype": residual_dtype or dtype}
        self.norm1 = keras.layers.LayerNormalization(**norm, name="norm1")
        self.norm2 = keras.layers.LayerNormalization(**norm, name="norm2")
        self.drop_path1 = DropPath(drop_path, dtype=dtype, name="drop_path1")
        self.drop_path2 = DropPath(drop_path, dtype=dtype, name="drop_path2")
        self.ls1 = self.ls2 = None
        if layer_scale is not None:
            self.ls1 = LayerScale(layer_scale, scalar_scale, dtype=dtype, name="ls1")
            self.ls2 = LayerScale(layer_scale, scalar_scale, dtype=dtype, name="ls2")

    def set_drop_path(self, rate: float) -> None:
        """Change the rate of stochastic depth, at any time; see `DropPath.set_rate`."""
        self.drop_path1.set_rate(rate)
        self.drop_path2.set_rate(rate)
        self.drop_path = rate

    @property
    def has_maps(self) -> bool:
        """Whether the attention has maps to return."""
        return "return_attention_scores" in self.attention.call_signature_parameters

    @property
    def input_dtype(self) -> str:
        """The dtype to which Keras casts the inputs."""
        return self.residual_dtype or super().input_dtype

    def residual(self, x):
        """Return tokens, or a branch, in the precision in which they are summed."""
        return x if self.residual_dtype is None else keras.ops.cast(x, self.residual_dtype)

    def added(self, x, branch, drop_path, training):
        """Return `x` and the branch after stochastic depth, summed."""
        return self.residual(x) + self.residual(self.run_in_training(drop_path, branch, training))

    def build(self, input_shape):
        self.attention.build(input_shape)
        self.build_around(input_shape)

    def build_around(self, input_shape) -> None:
        """Build everything except the attention, for tokens of `input_shape`."""
        first = (self.norm1, self.ls1, self.drop_path1)
        # Keras only quantizes a model in which all layers are built.
        for part in (*first, self.norm2, self.mlp, self.ls2, self.drop_path2):
            if part is not None:
                part.build(input_shape)

    def attend(
        self, x, training, attention_mask=None, return_attention_scores=False, return_parts=False
    ):
        """Return the output of the attention, and the first of the parts of the block.

        Args:
            x: Normalized tokens, or a pair of them and carried maps.
            training: Whether this is a training pass.
            attention_mask: The mask, or None.
            return_attention_scores: Whether `maps` is asked for.
            return_parts: Whether all parts are asked for.
        """
        arguments: dict[str, Any] = {}
        if attention_mask is not None:
            check_takes_mask(self.attention)
            arguments["attention_mask"] = attention_mask
        parts = {"normalized": x, "softmax": None, "maps": None}
        if return_parts and "return_parts" in self.attention.call_signature_parameters:
            y, found = self.run(self.attention, x, training, return_parts=True, **arguments)
            return y, parts | found
        if return_attention_scores or (return_parts and self.has_maps):
            arguments["return_attention_scores"] = True
            y, maps = self.run(self.attention, x, training, **arguments)
            return y, parts | {"softmax": maps, "maps": maps}
        return self.run(self.attention, x, training, **arguments), parts

    def before_attention(self, x):
        """Return the tokens that the attention reads."""
        return self.run(self.norm1, x)

    def add_branches(self, x, attended, training):
        """Add both branches to `x`, given the output of the attention; return them, too."""
        attention_branch = self.scaled(self.ls1, attended)
        x = self.added(x, attention_branch, self.drop_path1, training)
        mlp_branch = self.scaled(self.ls2, self.run(self.mlp, self.run(self.norm2, x), training))
        x = self.added(x, mlp_branch, self.drop_path2, training)
        return x, {"attention_branch": attention_branch, "mlp_branch": mlp_branch}

    def scaled(self, scale, branch):
        r"""Return $\gamma \odot b / s$, with $\gamma$ a LayerScale or None."""
        branch = branch if scale is None else self.run(scale, branch)
        return branch if self.residual_scale == 1 else branch / self.residual_scale

    def outputs(self, y, parts, return_attention_scores, return_parts):
        """Return what the caller asked for."""
        if return_parts:
            return y, parts
        return (y, parts["maps"]) if return_attention_scores else y

    def compute_output_spec(self, x, training=False, attention_mask=None, **returned):
        """Return the spec of the output without tracing the block, which would take seconds."""
        if any(returned.values()):
            return super().compute_output_spec(x, **returned)
        return self.tokens_spec(x)

    def tokens_spec(self, x):
        """Return the spec of the output where neither maps nor parts are asked for."""
        return keras.KerasTensor(x.shape, dtype=self.input_dtype)

    def call(
        self,
        x,
        training=False,
        return_attention_scores=False,
        attention_mask=None,
        return_parts=False,
    ):
        attended, parts = self.attend(
            self.before_attention(x),
            training,
            attention_mask,
            return_attention_scores,
            return_parts,
        )
        x, branches = self.add_branches(x, attended, training)
        return self.outputs(x, parts | branches, return_attention_scores, return_parts)


@register
class PostNormBlock(Block):
    r"""A post-norm residual block, as in BERT (Devlin et al., 2019).

    $$x \leftarrow \eta_1(x + d_1(\gamma_1 \odot \mathrm{attention}(x))), \qquad
    x \leftarrow \eta_2(x + d_2(\gamma_2 \odot \mathrm{mlp}(x)))$$
    Like `Block`, but for the places of the norms; `residual_scale` must be 1.

    Input and output: `(batch, tokens, dim)`.

    Raises:
        ValueError: if `residual_scale` is not 1.
    """

    def __init__(self, attention: keras.layers.Layer, mlp: keras.layers.Layer, **kwargs):
        super().__init__(attention, mlp, **kwargs)
        if self.residual_scale != 1:
            raise ValueError(
                "`residual_scale` must be 1 in a post-norm block. "
                f"Received: residual_scale={self.residual_scale}."
            )

    def before_attention(self, x):
        return x

    def add_branches(self, x, attended, training):
        attention_branch = self.scaled(self.ls1, attended)
        x = self.run(self.norm1, self.added(x, attention_branch, self.drop_path1, training))
        mlp_branch = self.scaled(self.ls2, self.run(self.mlp, x, training))
        x = self.run(self.norm2, self.added(x, mlp_branch, self.drop_path2, training))
        return x, {"attention_branch": attention_branch, "mlp_branch": mlp_branch}


def check_takes_mask(attention: keras.layers.Layer) -> None:
    """Check that an attention can be masked.

    Raises:
        ValueError: if it takes no `attention_mask`.
    """
    if "attention_mask" not in attention.call_signature_parameters:
        raise ValueError(
            "`attention_mask` must be None for a block whose attention takes none. "
            f"Received: a mask for {type(attention).__name__}."
        )
