"""Layers over attention maps: maps in, maps out.

A map layer takes and gives a tensor `(batch, heads, queries, keys)`; some give
another number of heads. It stands in `Attention(on_logits=[...])`, before the
softmax, or in `Attention(on_weights=[...])`, after it.
"""

from functools import partial

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.fast import batch_norm, in_pieces, mix, relu6


class MapLayer(Layer):
    """A layer over maps. Its output is known to differ in the number of heads at most."""

    def heads_of(self, heads: int) -> int:
        """Return the number of maps given for `heads` maps taken."""
        return heads

    def compute_output_shape(self, input_shape):
        batch, heads, queries, keys = input_shape
        return (batch, self.heads_of(heads), queries, keys)

    def compute_output_spec(self, maps, training=False):
        return keras.KerasTensor(self.compute_output_shape(maps.shape), dtype=self.compute_dtype)


@register
class HeadMixing(MapLayer):
    r"""A learned linear mix of the heads: $A'_i = \sum_j M_{ij} A_j + b_i$.

    Twice in an attention, before and after the softmax, it makes talking heads
    (CaiT, Section 4.3, after Shazeer et al.). With more heads out than in it is
    Refiner's attention expansion, with fewer its reduction (Sections 3.2, 3.4).

    Input: `(batch, heads, queries, keys)`. Output: the same with `heads_out` heads.
    The kernel `M` is `(heads out, heads in)`, the bias `(heads out,)`.

    Args:
        use_bias: Whether `b` is there. Before a softmax it has no effect (it is
            constant along the keys) and its gradient is zero; public
            checkpoints hold one all the same.
        heads_out: Number of heads given; None is as many as taken.
    """

    def __init__(self, use_bias: bool = True, heads_out: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.heads_out = heads_out

    def heads_of(self, heads):
        return self.heads_out or heads

    def build(self, input_shape):
        heads_in = input_shape[1]
        heads = self.heads_of(heads_in)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(heads, heads_in),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )
        self.bias = (
            self.add_weight(name="bias", shape=(heads,), initializer="zeros")
            if self.use_bias
            else None
        )

    def call(self, maps):
        return mix_heads(self.kernel, maps, self.bias)


def mix_heads(kernel, maps, bias=None, heads_last=False):
    """Mix the heads of `(batch, heads, queries, keys)`; `heads_last` as in `fast.mix`."""
    batch, heads, queries, keys = ops.shape(maps)
    # Heads stay first: one batched product over (queries x keys) columns,
    # several times faster than moving the heads last for a Dense.
    columns = ops.reshape(maps, (batch, heads, queries * keys))
    mixed = mix(kernel, columns, bias, heads_last)
    return ops.reshape(mixed, (batch, kernel.shape[0], queries, keys))


def MapNormalization(**kwargs) -> keras.layers.BatchNormalization:
    """Batch normalization of maps, one mean and variance a head.

    DeepViT, Section 4.2 (the Norm of Equation 3). Epsilon 1e-5 and momentum 0.9,
    as PyTorch's defaults in the public code.

    Args:
        **kwargs: Further arguments of `keras.layers.BatchNormalization`.
    """
    return keras.layers.BatchNormalization(axis=1, momentum=0.9, epsilon=1e-5, **kwargs)


def fold(norm, kernel, bias=None):
    """Fold a `MapNormalization` at inference into what is linear and stands before it.

    Args:
        norm: Built.
        kernel: `(heads, ...)`, heads given.
        bias: `(heads,)`, or None.

    Returns:
        The new kernel, and the new bias.
    """
    scale, shift = affine(norm)
    kernel = ops.cast(kernel, "float32")
    each_head = ops.reshape(scale, (-1, *[1] * (len(kernel.shape) - 1)))
    if bias is not None:
        shift = shift + scale * ops.cast(bias, "float32")
    return kernel * each_head, shift


def affine(norm):
    """Return what a `MapNormalization` multiplies and adds at inference, `(heads,)` each."""
    parts = (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)
    gamma, beta, mean, variance = (ops.cast(part, "float32") for part in parts)
    scale = gamma * ops.rsqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


@register
class ReAttention(MapLayer):
    r"""New maps from all heads: $A' = s\,\mathrm{BN}(\Theta A + b)$.

    DeepViT, Section 4.2, Equation 3; BN runs over the head axis.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        map_scale: $s$: 1, and $1/\sqrt{d}$ with $d$ the size of a head in the
            released DeepViT-S alone.
        normalize: Whether there is a BN. Without it, $A' = s\,(\Theta A + b)$.
    """

    def __init__(self, map_scale: float = 1.0, normalize: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.map_scale = map_scale
        self.normalize = normalize
        self.reatten_matrix = HeadMixing(dtype=self.dtype_policy, name="reatten_matrix")
        if normalize:
            self.var_norm = MapNormalization(dtype=self.dtype_policy, name="var_norm")

    def build(self, input_shape):
        self.reatten_matrix.build(input_shape)
        if self.normalize:
            self.var_norm.build(input_shape)

    def call(self, maps, training=False):
        mixing, scale = self.reatten_matrix, self.map_scale
        if self.normalize and not (training and self.trainable):
            kernel, bias = fold(self.var_norm, mixing.kernel, mixing.bias)
            cast = partial(ops.cast, dtype=self.compute_dtype)
            return mix_heads(cast(kernel * scale), maps, cast(bias * scale))
        maps = self.run(mixing, maps)
        if self.normalize:
            maps = batch_norm(self.var_norm, maps)
        return maps if scale == 1 else maps * scale


@register
class LocalMapConvolution(MapLayer):
    r"""A convolution of each head's map: distributed local attention.

    Refiner, Section 3.3. The map is read as an image of queries x keys:
    $$A'_{h,i,j} = \sum_{a,b} w_{h,a,b}\, A_{h,\,i+a-c,\,j+b-c}, \qquad c = (k-1)/2,$$
    zero outside. Aggregating values with it is aggregating them locally, then globally.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        kernel_size: $k$, odd.
        constraint: Where the kernel reaches (Table 4). None: over queries and
            keys. `"spatial"`: over the patches of `grid` as they lie in the image,
            for each query; keys before the patches (a class token) pass unchanged.
            `"row+column"`: $1 \times k$ along the keys plus $k \times 1$ along the
            queries, our reading of the table.
        grid: Rows and columns of patches, for `"spatial"`.

    Raises:
        ValueError: for an even `kernel_size`, an unknown `constraint`, or
            `"spatial"` without a grid that fits.
    """

    constraints = (None, "spatial", "row+column")

    def __init__(
        self,
        kernel_size: int = 3,
        constraint: str | None = None,
        grid: tuple[int, int] | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(
                "`kernel_size` must be odd, so that a kernel has a centre. "
                f"Received: kernel_size={kernel_size}."
            )
        if constraint not in self.constraints:
            raise ValueError(
                f"`constraint` must be one of {self.constraints}. Received: {constraint!r}."
            )
        if constraint == "spatial" and grid is None:
            raise ValueError("constraint='spatial' needs `grid`. Received: grid=None.")
        self.kernel_size = kernel_size
        self.constraint = constraint
        self.grid = None if grid is None else tuple(grid)

    def build(self, input_shape):
        _, heads, _, keys = input_shape
        if self.constraint == "spatial" and keys is not None and keys < self.grid[0] * self.grid[1]:
            raise ValueError(
                f"`grid` has more patches than there are keys. Received: grid={self.grid}, "
                f"keys={keys}."
            )
        size = self.kernel_size
        shape = (heads, 2, size) if self.constraint == "row+column" else (heads, 1, size, size)
        self.kernel = self.add_weight(
            name="kernel",
            shape=shape,
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def call(self, maps):
        kernel = ops.cast(self.kernel, self.compute_dtype)
        if self.constraint == "spatial":
            return self._convolve_rows(maps, kernel)
        if self.constraint == "row+column":
            along_keys = convolve(maps, kernel[:, :1, None])
            return along_keys + convolve(maps, kernel[:, 1:, :, None])
        return convolve(maps, kernel)

    def _convolve_rows(self, maps, kernel):
        batch, heads, queries, keys = ops.shape(maps)
        patches = self.grid[0] * self.grid[1]
        prefix, maps = maps[..., : keys - patches], maps[..., keys - patches :]
        # Each query's row over the patches is an image.
        images = ops.transpose(maps, (0, 2, 1, 3))
        images = ops.reshape(images, (batch * queries, heads, *self.grid))
        images = ops.reshape(convolve(images, kernel), (batch, queries, heads, patches))
        return ops.concatenate([prefix, ops.transpose(images, (0, 2, 1, 3))], axis=-1)


def convolve(maps, kernel):
    """Convolve each head's map with its kernel, `(heads, 1, height, width)`, padded with zeros.

    Under PyTorch it is several times faster with the heads last in memory.
    """
    if keras.backend.backend() != "jax":
        return ops.depthwise_conv(
            maps,
            ops.transpose(kernel, (2, 3, 0, 1)),
            padding="same",
            data_format="channels_first",
        )
    # XLA makes one loop of the shifted sums, several times faster on a CPU than
    # its depthwise convolution.
    _, _, queries, keys = ops.shape(maps)
    heads, _, height, width = kernel.shape
    up, left = height // 2, width // 2
    padded = ops.pad(maps, ((0, 0), (0, 0), (up, up), (left, left)))
    return sum(
        padded[:, :, i : i + queries, j : j + keys] * ops.reshape(kernel[:, 0, i, j], (heads, 1, 1))
        for i in range(height)
        for j in range(width)
    )


@register
class Refinement(MapLayer):
    r"""The paper's refiner: expansion, local convolution, reduction, all linear.

    $A' = W_r(w * (W_e A))$ with $W_e$ from $H$ to $rH$ maps, $w *$ the convolution of
    `LocalMapConvolution`, $W_r$ back to $H$ (Refiner, Section 3.4). Maps may leave [0, 1].

    Input: `(batch, heads, queries, keys)`. Output: the same; without reduction
    `expansion` times the heads.

    Args:
        expansion: $r$, at least 1 (Table 1).
        kernel_size: Side of the convolution, odd (Figure 6).
        reduction: Whether $W_r$ is there (Table 3).
        constraint: As in `LocalMapConvolution` (Table 4); so is `grid`.

    Raises:
        ValueError: for an `expansion` below 1, and as `LocalMapConvolution`.
    """

    def __init__(
        self,
        expansion: int = 3,
        kernel_size: int = 3,
        reduction: bool = True,
        constraint: str | None = None,
        grid: tuple[int, int] | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_expansion(expansion)
        self.expansion = expansion
        self.kernel_size = kernel_size
        self.reduction = reduction
        self.constraint = constraint
        self.local = LocalMapConvolution(
            kernel_size, constraint, grid, dtype=self.dtype_policy, name="local"
        )
        self.grid = self.local.grid

    def heads_of(self, heads):
        return heads if self.reduction else self.expansion * heads

    def build(self, input_shape):
        heads = input_shape[1]
        expanded = self.expansion * heads
        dtype = self.dtype_policy
        self.expand = HeadMixing(heads_out=expanded, dtype=dtype, name="expand")
        self.expand.build(input_shape)
        wide = self.expand.compute_output_shape(input_shape)
        self.local.build(wide)
        if self.reduction:
            self.reduce = HeadMixing(heads_out=heads, dtype=dtype, name="reduce")
            self.reduce.build(wide)

    def call(self, maps):
        maps = mix_heads(self.expand.kernel, maps, self.expand.bias, heads_last=True)
        maps = self.run(self.local, maps)
        return self.run(self.reduce, maps) if self.reduction else maps


@register
class ResidualRefinement(MapLayer):
    r"""The refiner of the released Refined-ViT: nonlinear, normalised, residual.

    $$A' = s\,\mathrm{BN}(A + \mathrm{BN}(W_r\,\phi(w * \phi(W_e A)))), \qquad
    \phi = \mathrm{ReLU6} \circ \mathrm{BN},$$
    $W_e$ to `expansion` times the maps, $w *$ a convolution of each, $W_r$ back, no
    biases. The paper's own form is `Refinement`.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        expansion: Maps inside over maps taken, at least 1. The released S declares
            6, which never reaches its blocks: it is 3 in all.
        kernel_size: Side of the convolution, odd.
        map_scale: $s$; $1/\sqrt d$ with $d$ the size of a head in the released code.

    Raises:
        ValueError: for an `expansion` below 1 or an even `kernel_size`.
    """

    def __init__(self, expansion: int = 3, kernel_size: int = 3, map_scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        check_expansion(expansion)
        self.expansion = expansion
        self.kernel_size = kernel_size
        self.map_scale = map_scale
        dtype = self.dtype_policy
        self.depth_sep_conv = LocalMapConvolution(kernel_size, dtype=dtype, name="depth_sep_conv")
        self.bn1 = MapNormalization(dtype=dtype, name="bn1")
        self.bn2 = MapNormalization(dtype=dtype, name="bn2")
        self.bn3 = MapNormalization(dtype=dtype, name="bn3")
        self.adapt_bn = MapNormalization(dtype=dtype, name="adapt_bn")

    def build(self, input_shape):
        heads = input_shape[1]
        dtype = self.dtype_policy
        expanded = self.expansion * heads
        self.conv_exp = HeadMixing(False, expanded, dtype=dtype, name="conv_exp")
        self.conv_pro = HeadMixing(False, heads, dtype=dtype, name="conv_pro")
        self.conv_exp.build(input_shape)
        wide = self.conv_exp.compute_output_shape(input_shape)
        for part in (self.bn1, self.depth_sep_conv, self.bn2, self.conv_pro):
            part.build(wide)
        self.bn3.build(input_shape)
        self.adapt_bn.build(input_shape)

    def call(self, maps, training=False):
        if not (training and self.trainable):
            return in_pieces(self.folded(), maps, self.expansion)
        y = mix_heads(self.conv_exp.kernel, maps, heads_last=True)
        y = relu6(batch_norm(self.bn1, y))
        y = relu6(batch_norm(self.bn2, self.run(self.depth_sep_conv, y)))
        y = maps + batch_norm(self.bn3, self.run(self.conv_pro, y))
        return batch_norm(self.adapt_bn, y) * self.map_scale

    def folded(self):
        """Return what the layer computes at inference, with the norms in the kernels."""
        scale, shift = (self.map_scale * part for part in affine(self.adapt_bn))
        inside = fold(self.bn1, self.conv_exp.kernel)
        local = fold(self.bn2, self.depth_sep_conv.kernel)
        kernel, bias = fold(self.bn3, self.conv_pro.kernel)
        outside = kernel * scale[:, None], bias * scale + shift
        cast = partial(ops.cast, dtype=self.compute_dtype)
        (inside, local, outside) = (tuple(map(cast, pair)) for pair in (inside, local, outside))
        scale = cast(ops.reshape(scale, (-1, 1, 1)))

        def refine(maps):
            y = relu6(mix_heads(inside[0], maps, inside[1], heads_last=True))
            y = relu6(convolve(y, local[0]) + ops.reshape(local[1], (-1, 1, 1)))
            return mix_heads(outside[0], y, outside[1]) + maps * scale

        return refine


@register
class Temperature(MapLayer):
    r"""A temperature of the softmax: logits over $\tau$ (DeepViT, Section 5.3, Equation 4).

    It stands in `on_logits`. Below 1 it sharpens the maps.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        temperature: $\tau$, above 0. Lower from block to block it is the linearly
            decayed one of Table 5.
        learnable: Whether $\tau$ is trained, one a layer, from that start.

    Raises:
        ValueError: when `temperature` is not above 0.
    """

    varying = ("temperature",)

    def __init__(self, temperature: float = 1.0, learnable: bool = False, **kwargs):
        super().__init__(**kwargs)
        if temperature <= 0:
            raise ValueError(f"`temperature` must be above 0. Received: {temperature}.")
        self.temperature = temperature
        self.learnable = learnable

    def build(self, input_shape):
        if self.learnable:
            self.tau = self.add_weight(
                name="tau",
                shape=(1,),
                initializer=keras.initializers.Constant(self.temperature),
            )

    def call(self, maps):
        tau = self.tau if self.learnable else ops.cast(self.temperature, maps.dtype)
        return maps / tau


@register
class UniformHeads(MapLayer):
    r"""Maps that attend to every token alike, after the learned ones: $A_{ij} = 1/N$.

    Context Broadcasting, Section 2.2, Table 3. It stands in `on_weights`, and the
    attention has a head of values for each of its maps. With $H$ heads in all:
    `Attention(H - 1, head_size=dim // H, on_weights=[UniformHeads(1)])` replaces one,
    `UniformHeads(2)` there replaces one at equal parameters, and
    `Attention(H, on_weights=[UniformHeads(1)])` appends one.

    Input: `(batch, heads, queries, keys)`. Output: the same with `count` more heads.

    Args:
        count: Number of uniform maps, at least 1.

    Raises:
        ValueError: when `count` is below 1.
    """

    def __init__(self, count: int = 1, **kwargs):
        super().__init__(**kwargs)
        if count < 1:
            raise ValueError(f"`count` must be at least 1. Received: {count}.")
        self.count = count

    def heads_of(self, heads):
        return heads + self.count

    def call(self, maps):
        batch, _, queries, keys = ops.shape(maps)
        uniform = ops.full((batch, self.count, queries, keys), 1 / keys, dtype=maps.dtype)
        return ops.concatenate([maps, uniform], axis=1)


def check_expansion(expansion: int) -> None:
    """Check the ratio of an attention expansion.

    Raises:
        ValueError: when it is below 1.
    """
    if expansion < 1:
        raise ValueError(
            "`expansion` must be at least 1: maps inside over maps taken. "
            f"Received: expansion={expansion}."
        )
