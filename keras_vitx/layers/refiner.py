"""Refiner's layers: local convolution of maps, both refiners."""

from typing import Literal

from keras_vitx.checks import check, check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import build_all, register
from keras_vitx.layers.initializers import uniform
from keras_vitx.layers.maps import MapLayer, MapNormalization, convolution_1x1


@register
class LocalMapConvolution(MapLayer):
    r"""A depthwise convolution of the maps: Refiner's distributed local attention (Section 3.3).

    Each head's map is convolved as an image of queries x keys, with zero padding:
    $$A'_{h,i,j} = \sum_{a,b} w_{h,a,b}\, A_{h,\,i+a-c,\,j+b-c}, \qquad c = (k-1)/2.$$
    Aggregating values with $A'$ aggregates them locally, then globally.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        kernel_size: $k$, odd.
        constraint: Axes of the kernel (Table 4). None: queries and keys. `"spatial"`: the rows and
            columns of patches of `grid`, per query; keys before the patches (a class token) are
            left unchanged. `"row+column"`: the sum of a $1 \times k$ convolution along the keys and
            a $k \times 1$ convolution along the queries, our interpretation of the table.
        grid: Rows and columns of patches, for `"spatial"`; as many as there are keys, or fewer.
    """

    def __init__(
        self,
        kernel_size: int = 3,
        constraint: str | None = None,
        grid: tuple[int, int] | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check(kernel_size > 0 and kernel_size % 2, "`kernel_size` must be odd.", kernel_size)
        check_argument("constraint", constraint, Literal["spatial", "row+column"] | None)
        self.kernel_size = kernel_size
        self.constraint = constraint
        self.grid = None if grid is None else tuple(grid)

    def build(self, input_shape):
        heads = input_shape[1]
        side = self.kernel_size
        shape, fan_in = (heads, 1, side, side), side**2
        if self.constraint == "row+column":
            shape, fan_in = (heads, 2, side), side
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=uniform(fan_in))

    def call(self, maps):
        kernel = ops.cast(self.kernel, self.compute_dtype)
        if self.constraint == "spatial":
            return self.convolve_rows(maps, kernel)
        if self.constraint == "row+column":
            along_keys, along_queries = kernel[:, :1, None], kernel[:, 1:, :, None]
            return ops.convolve_maps(maps, along_keys) + ops.convolve_maps(maps, along_queries)
        return ops.convolve_maps(maps, kernel)

    def convolve_rows(self, maps, kernel):
        """Convolve the row of each query, over the patches, as an image."""
        batch, heads, queries, keys = ops.shape(maps)
        patches = self.grid[0] * self.grid[1]
        prefix, maps = maps[..., : keys - patches], maps[..., keys - patches :]
        images = ops.transpose(maps, (0, 2, 1, 3))
        images = ops.reshape(images, (batch * queries, heads, *self.grid))
        images = ops.reshape(ops.convolve_maps(images, kernel), (batch, queries, heads, patches))
        return ops.concatenate([prefix, ops.transpose(images, (0, 2, 1, 3))], axis=-1)


@register
class Refinement(MapLayer):
    r"""The paper's refiner: expansion, local convolution, reduction, all linear.

    $A' = W_r(w * (W_e A))$ with $W_e$ from $H$ to $rH$ maps, $w *$ the convolution of
    `LocalMapConvolution`, $W_r$ back to $H$ (Refiner, Section 3.4). There are no biases: a bias on
    a map is uniform attention. Entries of the maps may leave [0, 1].

    Input: `(batch, heads, queries, keys)`. Output: the same shape; without reduction, with
    `expansion` times as many heads.

    Args:
        expansion: $r$, at least 1 (Table 1).
        kernel_size: Side of the convolution, odd (Figure 6).
        reduction: Whether to apply $W_r$ (Table 3).
        constraint, grid: As in `LocalMapConvolution` (Table 4).
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
        heads, dtype = input_shape[1], self.dtype_policy
        wide = self.expansion * heads
        self.expand = convolution_1x1(heads, wide, False, dtype, "expand")
        shape = build_all([self.expand, self.local], input_shape)
        if self.reduction:
            self.reduce = convolution_1x1(wide, heads, False, dtype, "reduce")
            self.reduce.build(shape)

    def call(self, maps):
        maps = self.run(self.local, self.run(self.expand, maps))
        return self.run(self.reduce, maps) if self.reduction else maps


@register
class ResidualRefinement(MapLayer):
    r"""The refiner of the released Refined-ViT: nonlinear, normalized, residual.

    $$A' = s\,\mathrm{BN}(A + \mathrm{BN}(W_r\,\phi(w * \phi(W_e A)))), \qquad
    \phi = \mathrm{ReLU6} \circ \mathrm{BN},$$
    with $W_e$ to `expansion` times as many maps, $w *$ a convolution of each map, $W_r$ back, and
    no biases, so that half precision keeps the maps. The paper's own form is `Refinement`.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        expansion: Ratio of inner maps to input maps, at least 1; 3 in every released model.
        kernel_size: Side of the convolution, odd.
        map_scale: $s$; in the released code $1/\sqrt d$, with $d$ the size of a head.
    """

    def __init__(self, expansion: int = 3, kernel_size: int = 3, map_scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.expansion = expansion
        self.kernel_size = kernel_size
        self.map_scale = map_scale
        dtype = self.dtype_policy
        self.depth_sep_conv = LocalMapConvolution(kernel_size, dtype=dtype, name="depth_sep_conv")
        for name in ("bn1", "bn2", "bn3", "adapt_bn"):
            setattr(self, name, MapNormalization(dtype=dtype, name=name))

    def build(self, input_shape):
        heads, dtype = input_shape[1], self.dtype_policy
        wide = self.expansion * heads
        self.conv_exp = convolution_1x1(heads, wide, False, dtype, "conv_exp")
        self.conv_pro = convolution_1x1(wide, heads, False, dtype, "conv_pro")
        layers = [self.conv_exp, self.bn1, self.depth_sep_conv, self.bn2, self.conv_pro, self.bn3]
        build_all([*layers, self.adapt_bn], input_shape)

    def call(self, maps, training=False):
        y = ops.relu6(self.run_all([self.conv_exp, self.bn1], maps, training))
        y = ops.relu6(self.run_all([self.depth_sep_conv, self.bn2], y, training))
        y = self.run_all([self.conv_pro, self.bn3], y, training)
        y = self.run(self.adapt_bn, maps + y, training)
        return y if self.map_scale == 1 else self.map_scale * y


def RefinedAttention(
    num_heads: int,
    expansion: int = 3,
    kernel_size: int = 3,
    reduction: bool = True,
    constraint: str | None = None,
    grid: tuple[int, int] | None = None,
    **kwargs,
) -> Attention:
    """Attention with `Refinement`, the paper's refiner, over its maps (Refiner, Section 3.4).

    With `expansion=1` and `kernel_size=1`, this is talking heads after the softmax only.
    The arguments are those of `Refinement` and of `Attention`.
    """
    own = {"name": "refinement", "dtype": kwargs.get("dtype")}
    layer = Refinement(expansion, kernel_size, reduction, constraint, grid, **own)
    return Attention(num_heads, on_weights=[layer], **kwargs)
