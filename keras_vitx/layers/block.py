"""Transformer blocks. A block takes its attention and its MLP as arguments."""

from typing import Literal

import keras

from keras_vitx.checks import PositiveFloat, check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import Layer, build_all, is_own, register
from keras_vitx.layers.regularization import DropPath, LayerScale


@register
class Block(Layer):
    r"""A pre-norm residual block.

    $$x \leftarrow x + d_1(\gamma_1 \odot \mathrm{attention}(\eta_1(s x))) / s, \qquad
    x \leftarrow x + d_2(\gamma_2 \odot \mathrm{mlp}(\eta_2(s x))) / s$$
    with $\eta$ LayerNorm, $\gamma$ LayerScale and $d$ stochastic depth.

    Input: `(batch, tokens, dim)`. Output: the same shape; with `return_attention_scores=True`, a
    pair of it and the maps of the attention; with `return_intermediates=True`, a pair of it and a
    dictionary: `normalized`, the tokens that the attention reads; `softmax` and `maps`, its maps
    before and after modification, None without; `attention_branch` and `mlp_branch`, both branches
    as they are added to the tokens, before stochastic depth. An `attention_mask`, broadcastable to
    `(batch, tokens, tokens)`, is that of the attention.

    Args:
        attention: A layer on tokens that takes `return_attention_scores`; one that does not (such
            as `TokenMixing`) has no maps.
        mlp: A layer on tokens.
        layer_scale: Initial value of $\gamma$, a number or an initializer; None is no $\gamma$.
        scalar_scale: One $\gamma$ per branch instead of one per channel.
        residual_scale: $s$; 0.5 in DeepViT-S, DeepViT-L and Refined-ViT.
        drop_path: Rate of stochastic depth.
        epsilon: Epsilon of the norms.
        residual_dtype: Precision in which the tokens are summed and normalized: None, that of the
            layer, or `"float32"`, also under a policy of half precision. There, a sum
            $x + \gamma b$ rounds to $x$ while $\gamma$ is near its start.

    Raises:
        ValueError: if `attention` or `mlp` is no layer, `residual_scale` is not above 0, or
            `residual_dtype` is unknown; at build, naming the block, if a layer in it fails; at the
            call, if an attention that takes no `attention_mask` is given one.
    """

    # Of blocks that share their maps, such as `SharedMapsBlock`.
    receives_maps = emits_maps = False
    similarity = 0.0

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
        for argument, layer in (("attention", attention), ("mlp", mlp)):
            if not isinstance(layer, keras.layers.Layer):
                raise ValueError(f"`{argument}` must be a layer. Received: {layer!r}.")
        check_argument("residual_dtype", residual_dtype, Literal["float32"] | None)
        check_argument("residual_scale", residual_scale, PositiveFloat)
        self.attention = attention
        self.mlp = mlp
        self.layer_scale = layer_scale
        self.scalar_scale = scalar_scale
        self.residual_scale = residual_scale
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

    @property
    def drop_path(self) -> float:
        """The rate of stochastic depth, which may be set at any time; see `DropPath.rate`."""
        return self.drop_path1.rate

    @drop_path.setter
    def drop_path(self, rate: float) -> None:
        self.drop_path1.rate = self.drop_path2.rate = rate

    @property
    def has_maps(self) -> bool:
        """Whether the attention has maps to return."""
        return "return_attention_scores" in self.attention.call_signature_parameters

    @property
    def reads_maps(self) -> bool:
        """Whether the attention receives the maps that the block takes."""
        return self.receives_maps and self.attention.reads_maps

    @property
    def input_dtype(self) -> str:
        """The dtype to which Keras casts the inputs."""
        return self.residual_dtype or super().input_dtype

    def build(self, input_shape):
        tokens = input_shape[0] if self.receives_maps else input_shape
        try:
            self.build_branch("attention", input_shape if self.reads_maps else tokens)
            self.build_branch("mlp", tokens)
        except ValueError as error:
            raise ValueError(f"{error} In block {self.name!r}.") from error
        # Keras only quantizes a model in which all layers are built.
        norms, scales = (self.norm1, self.norm2), (self.ls1, self.ls2)
        for layer in (*norms, *scales, self.drop_path1, self.drop_path2):
            if layer is not None:
                layer.build(tokens)

    def build_branch(self, name, shape):
        """Build the attention or the MLP, which has to keep the shape."""
        layer = getattr(self, name)
        if isinstance(layer, Attention) or is_own(layer):
            layer.build(shape)
        else:
            build_all([layer], shape, name, free_axis=None)

    def call(
        self,
        x,
        training=False,
        return_attention_scores=False,
        attention_mask=None,
        return_intermediates=False,
    ):
        returns_maps = return_attention_scores or return_intermediates
        tokens, shared = self.received(x)
        normalized = self.run(self.norm1, tokens)
        y, intermediates = self.attend(normalized, shared, training, attention_mask, returns_maps)
        attention_branch = self.scaled(self.ls1, y)
        x = self.updated(tokens) + self.dropped(self.drop_path1, attention_branch, training)

        y = self.run(self.mlp, self.run(self.norm2, x), training)
        mlp_branch = self.scaled(self.ls2, y)
        x = self.residual(x) + self.dropped(self.drop_path2, mlp_branch, training)

        y = self.returned(x, tokens, intermediates.pop("shared", None))
        if return_intermediates:
            branches = {"attention_branch": attention_branch, "mlp_branch": mlp_branch}
            return y, {"normalized": normalized, **intermediates, **branches}
        return (y, intermediates["maps"]) if return_attention_scores else y

    def received(self, x):
        """Return the tokens of the input, and the maps of an earlier block or None."""
        return x, None

    def attend(self, x, shared, training, attention_mask, returns_maps):
        """Return the output of the attention, and its maps if they are asked for."""
        accepted = self.attention.call_signature_parameters
        arguments = {} if attention_mask is None else {"attention_mask": attention_mask}
        if arguments and "attention_mask" not in accepted:
            raise ValueError(
                "`attention_mask` must be None for a block whose attention takes none. "
                f"Received: a mask for {type(self.attention).__name__}."
            )
        x = (x, shared) if self.reads_maps else x
        if returns_maps and "return_intermediates" in accepted:
            return self.run(self.attention, x, training, return_intermediates=True, **arguments)
        if returns_maps and self.has_maps:
            arguments["return_attention_scores"] = True
            y, maps = self.run(self.attention, x, training, **arguments)
            return y, {"softmax": maps, "maps": maps}
        return self.run(self.attention, x, training, **arguments), {"softmax": None, "maps": None}

    def scaled(self, scale, branch):
        r"""Return $\gamma \odot b / s$, with $\gamma$ a LayerScale or None."""
        branch = branch if scale is None else self.run(scale, branch)
        return branch if self.residual_scale == 1 else branch / self.residual_scale

    def dropped(self, drop_path, branch, training):
        """Return a branch after stochastic depth."""
        return self.residual(self.run_in_training(drop_path, branch, training))

    def updated(self, tokens):
        """Return the tokens to which the branches are added."""
        return self.residual(tokens)

    def returned(self, x, tokens, shared):
        """Return the output, given the updated tokens, all tokens, and what is passed on."""
        return x

    def residual(self, x):
        """Return tokens, or a branch, in the precision in which they are summed."""
        return x if self.residual_dtype is None else ops.cast(x, self.residual_dtype)

    def compute_output_spec(self, x, training=False, attention_mask=None, **returned):
        # Without tracing the block, which would take seconds.
        if any(returned.values()):
            return super().compute_output_spec(x, **returned)
        batch, count, dim = (x[0] if self.receives_maps else x).shape
        y = keras.KerasTensor((batch, count, dim), dtype=self.input_dtype)
        if not self.emits_maps:
            return y
        shape = (batch, *self.attention.shared_shape(count)[1:])
        return y, keras.KerasTensor(shape, dtype=self.compute_dtype)
