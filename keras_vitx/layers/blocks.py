"""Transformer blocks. A block takes its attention and its MLP as arguments."""

import inspect
from typing import Any

import keras

from keras_vitx.keras_internals import takes_attention_mask
from keras_vitx.layers import eager as ops
from keras_vitx.layers.base import Layer, register, suggest_loop
from keras_vitx.layers.fast import add_scaled, layer_norm
from keras_vitx.layers.regularization import DropPath, LayerScale


@register
class Block(Layer):
    r"""A pre-norm residual block.

    $$x \leftarrow x + d_1(\gamma_1 \odot \mathrm{attention}(\eta_1(s x))) / s, \qquad
    x \leftarrow x + d_2(\gamma_2 \odot \mathrm{mlp}(\eta_2(s x))) / s$$
    with $\eta$ LayerNorm, $\gamma$ LayerScale and $d$ stochastic depth.

    Input and output: `(batch, tokens, dim)`. With `return_attention_scores=True`, the
    output is a pair of it and the maps of the attention. An `attention_mask`, broadcastable to
    `(batch, tokens, tokens)`, is passed on to the attention and to an MLP that takes it.

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

    Raises:
        ValueError: if `residual_scale` is not above 0; at the call, if the attention (such as
            `TokenMixing`) takes no `attention_mask` and is given one.
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
        **kwargs,
    ):
        super().__init__(**kwargs)
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
        # The checkpoints' names, whatever the layers were named.
        attention.name = "attn"
        mlp.name = "mlp"
        dtype = self.dtype_policy
        # Normalizing s x with epsilon e is the same as normalizing x with e / s².
        norm = {"epsilon": epsilon / residual_scale**2, "dtype": dtype}
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
        return "return_attention_scores" in inspect.signature(self.attention.call).parameters

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

    def attend(self, x, training, return_attention_scores=False, attention_mask=None):
        """Return the output of the attention, and its maps or None.

        Args:
            x: Normalized tokens, or a pair of them and carried maps.
            training: Whether this is a training pass.
            return_attention_scores: Whether to return the maps.
            attention_mask: The mask, or None.
        """
        masks = {}
        if attention_mask is not None:
            check_takes_mask(self.attention)
            masks = {"attention_mask": attention_mask}
        if not return_attention_scores:
            return self.run(self.attention, x, training, **masks), None
        return self.run(self.attention, x, training, return_attention_scores=True, **masks)

    def add_branches(self, x, attended, training, attention_mask=None):
        """Add both residual branches to `x`, given the output of the attention."""
        if training:
            suggest_loop(x)
        x = self.add(x, attended, self.ls1, self.drop_path1, training)
        fed = self.run_all([self.mlp], layer_norm(self.norm2, x), training, attention_mask)
        return self.add(x, fed, self.ls2, self.drop_path2, training)

    def add(self, x, branch, scale, drop_path, training):
        r"""Return $x + d(\gamma \odot b) / s$.

        Args:
            x: The tokens.
            branch: $b$, the output of the attention or of the MLP.
            scale: The LayerScale of the branch, or None.
            drop_path: The stochastic depth of the branch.
            training: Whether this is a training pass.
        """
        drops = training and drop_path.seed_generator is not None
        # A trace observes `as_added`, to see what is added.
        alone = getattr(self.as_added, "__func__", None) is Block.as_added
        if alone and scale is not None and self.residual_scale == 1 and not drops:
            return add_scaled(x, branch, scale)
        return x + self.run_in_training(drop_path, self.as_added(scale, branch), training)

    def as_added(self, scale, branch):
        """Return the output of a branch as it is added to the tokens, but for stochastic depth.

        Args:
            scale: The LayerScale of the branch, or None.
            branch: The output of the attention or of the MLP.
        """
        branch = branch if scale is None else self.run(scale, branch)
        return branch if self.residual_scale == 1 else branch / self.residual_scale

    def compute_output_spec(
        self, x, training=False, return_attention_scores=False, attention_mask=None
    ):
        """Return the spec of the output without tracing the block, which would take seconds."""
        if return_attention_scores:
            return super().compute_output_spec(x, return_attention_scores=True)
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def call(self, x, training=False, return_attention_scores=False, attention_mask=None):
        attended, maps = self.attend(
            layer_norm(self.norm1, x), training, return_attention_scores, attention_mask
        )
        x = self.add_branches(x, attended, training, attention_mask)
        return (x, maps) if return_attention_scores else x


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

    def call(self, x, training=False, return_attention_scores=False, attention_mask=None):
        attended, maps = self.attend(x, training, return_attention_scores, attention_mask)
        x = layer_norm(self.norm1, self.add(x, attended, self.ls1, self.drop_path1, training))
        fed = self.run_all([self.mlp], x, training, attention_mask)
        x = layer_norm(self.norm2, self.add(x, fed, self.ls2, self.drop_path2, training))
        return (x, maps) if return_attention_scores else x


@register
class ClassBlock(Block):
    r"""A block that updates the class tokens only (CaiT, Section 3).

    Like `Block`, with an attention that returns one output per class token
    (`ClassAttention`); the patch tokens pass through unchanged.

    Input and output: `(batch, class tokens + patches, dim)`, class tokens first. An
    `attention_mask` is that of the attention, `(batch, class tokens, keys)`; the MLP, which
    only sees the class tokens, has none.
    """

    def call(self, x, training=False, return_attention_scores=False, attention_mask=None):
        attended, maps = self.attend(
            layer_norm(self.norm1, x), training, return_attention_scores, attention_mask
        )
        tokens = self.attention.num_class_tokens
        updated = self.add_branches(x[:, :tokens], attended, training)
        x = ops.concatenate([updated, x[:, tokens:]], axis=1)
        return (x, maps) if return_attention_scores else x


@register
class CarryingBlock(Block):
    r"""A block that carries attention maps to the next block.

    Like `Block`. The carried maps are those that its attention computed, or, if its
    attention computes none (`SharedAttention`), those that the block received.

    Input: tokens `(batch, tokens, dim)`; with `takes_maps`, a pair of them and the
    carried maps `(batch, heads, tokens, tokens)`. Output: such a pair with `gives_maps`,
    else the tokens; with `return_attention_scores=True`, a pair of that and the maps of
    the attention.

    Args:
        attention: As in `Block`. The layers of `keras_vitx.layers.sharing` receive the
            carried maps, others only the tokens.
        mlp: As in `Block`.
        takes_maps: Whether the input includes carried maps.
        gives_maps: Whether the output includes carried maps.
        similarity: $\lambda$ of DeepViT, Appendix A, Equation 6: in training,
            $\lambda$ times the similarity of this block's maps to the carried ones is
            added to the loss.
        similarity_over: Axis of the cosine, as in `map_similarity`.
        **kwargs: Further arguments of `Block`.

    Raises:
        ValueError: if `similarity_over` is unknown.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        mlp: keras.layers.Layer,
        takes_maps: bool = True,
        gives_maps: bool = True,
        similarity: float = 0.0,
        similarity_over: str = "heads",
        **kwargs,
    ):
        super().__init__(attention, mlp, **kwargs)
        check_similarity_over(similarity_over)
        self.takes_maps = takes_maps
        self.gives_maps = gives_maps
        self.similarity = similarity
        self.similarity_over = similarity_over

    def build(self, input_shape):
        tokens = input_shape[0] if self.takes_maps else input_shape
        self.attention.build(input_shape if self._reads_maps else tokens)
        self.build_around(tokens)

    @property
    def _reads_maps(self):
        return self.takes_maps and self.attention.reads_maps

    def compute_output_spec(
        self, x, training=False, return_attention_scores=False, attention_mask=None
    ):
        if return_attention_scores:
            return Layer.compute_output_spec(self, x, return_attention_scores=True)
        tokens = x[0] if self.takes_maps else x
        given = keras.KerasTensor(tokens.shape, dtype=self.compute_dtype)
        if not self.gives_maps:
            return given
        batch, count, _ = tokens.shape
        shape = (batch, self.attention.maps_given, count, count)
        return given, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def call(self, x, training=False, return_attention_scores=False, attention_mask=None):
        x, carried = x if self.takes_maps else (x, None)
        normed = layer_norm(self.norm1, x)
        attended, maps = self.attend(
            (normed, carried) if self._reads_maps else normed,
            training,
            self.gives_maps or self.similarity or return_attention_scores,
            attention_mask,
        )
        if self.similarity and training:
            self.add_loss(self.similarity * map_similarity(maps, carried, self.similarity_over))
        x = self.add_branches(x, attended, training, attention_mask)
        if self.gives_maps:
            x = (x, maps if self.attention.computes_maps else carried)
        return (x, maps) if return_attention_scores else x


def check_takes_mask(attention: keras.layers.Layer) -> None:
    """Check that an attention can be masked.

    Raises:
        ValueError: if it takes no `attention_mask`.
    """
    if not takes_attention_mask(attention):
        raise ValueError(
            "`attention_mask` must be None for a block whose attention takes none. "
            f"Received: a mask for {type(attention).__name__}."
        )


SIMILARITY_AXES = {"heads": 1, "queries": 2}


def map_similarity(maps: Any, others: Any, over: str = "heads") -> Any:
    r"""Return the mean cosine similarity between the maps of two blocks, a scalar.

    Args:
        maps: `(batch, heads, queries, keys)`.
        others: The same shape.
        over: `"heads"`: $\cos(A_{:,q,k}, B_{:,q,k})$, averaged over queries and keys, as
            in the released DeepViT loss. `"queries"`: $\cos(A_{h,:,k}, B_{h,:,k})$,
            averaged over heads and keys (DeepViT, Section 3, Equation 2). Both are
            averaged over the batch.
    """
    axis = SIMILARITY_AXES[over]
    maps, others = (ops.cast(part, "float32") for part in (maps, others))
    norms = (ops.maximum(ops.sum(part**2, axis), 1e-16) for part in (maps, others))
    scale, other_scale = map(ops.rsqrt, norms)
    return ops.mean(ops.sum(maps * others, axis) * scale * other_scale)


def check_similarity_over(over: str) -> None:
    """Check the axis of `map_similarity`.

    Raises:
        ValueError: if the axis is unknown.
    """
    if over not in SIMILARITY_AXES:
        raise ValueError(
            f"`similarity_over` must be one of {tuple(SIMILARITY_AXES)}. Received: {over!r}."
        )
