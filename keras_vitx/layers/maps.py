"""Layers over attention maps: maps in, maps out.

A map layer takes and returns a tensor `(batch, heads, queries, keys)`; some change the
number of heads. It goes into `Attention(on_logits=[...])`, before the softmax, or
`Attention(on_weights=[...])`, after it.

`call` is the formula. If a layer has a faster form at inference, `folded` returns it, with
the normalizations folded into the preceding kernels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from keras_vitx.keras_internals import children, without_autocast
from keras_vitx.layers import eager as ops
from keras_vitx.layers.base import InferenceForm, Layer, register
from keras_vitx.layers.fast import (
    batch_norm,
    batch_norm_relu6,
    convolve_maps,
    has_hooks,
    in_pieces,
    mix,
    relu6,
)
from keras_vitx.layers.initializers import truncated_normal, uniform
from keras_vitx.layers.masking import masked, shares


class MapLayer(Layer):
    """A layer over maps; only the number of heads may differ between input and output.

    A layer whose output depends on what is masked takes an argument `attention_mask` in `call`,
    `(batch or 1, 1, queries or 1, keys)`. `Attention` sets the masked entries of all inputs and
    outputs to 0 itself.
    """

    def heads_of(self, heads: int) -> int:
        """Return the number of output heads for `heads` input heads."""
        return heads

    def compute_output_shape(self, input_shape):
        batch, heads, queries, keys = input_shape
        return (batch, self.heads_of(heads), queries, keys)

    def compute_output_spec(self, maps, training=False, attention_mask=None):
        return keras.KerasTensor(self.compute_output_shape(maps.shape), dtype=self.compute_dtype)

    def folds(self, training: Any) -> bool:
        """Return whether `folded` may run: at inference, unless a child has hooks."""
        return not (training and self.trainable) and not has_hooks(*children(self))


@register
class HeadMixing(MapLayer):
    r"""A learned linear mix of the heads: $A'_i = \sum_j M_{ij} A_j + b_i$.

    Before and after the softmax, it makes talking heads (CaiT, Section 4.3, after Shazeer
    et al.). With more output than input heads it is Refiner's attention expansion, with
    fewer its reduction (Sections 3.2, 3.4).

    Input: `(batch, heads, queries, keys)`. Output: the same with `heads_out` heads.
    The kernel `M` is `(output heads, input heads)`, the bias `(output heads,)`.

    Args:
        use_bias: Whether there is a `b`. Before a softmax it has no effect (it is constant
            over the keys) and its gradient is zero, but public checkpoints have one.
        heads_out: Number of output heads; None is the number of input heads.
        kernel_initializer: Initializer of `M`; None is a truncated normal of stddev 0.02,
            as for the Dense layers that mix heads in the released CaiT.
        bias_initializer: Initializer of `b`.

    Attributes:
        heads_last: Under PyTorch, whether the heads of the output are last in memory.
    """

    heads_last = False

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
        # Clones, because an initializer returns the same numbers each time.
        kernel_start, bias_start = (
            keras.initializers.get(start).clone()
            for start in (self.kernel_initializer or truncated_normal(), self.bias_initializer)
        )
        self.kernel = self.add_weight(
            name="kernel", shape=(heads, heads_in), initializer=kernel_start
        )
        self.bias = (
            self.add_weight(name="bias", shape=(heads,), initializer=bias_start)
            if self.use_bias
            else None
        )

    def call(self, maps):
        return mix_heads(self.kernel, maps, self.bias, self.heads_last)


def convolution_1x1(heads: int, heads_out: int, use_bias: bool, **kwargs: Any) -> HeadMixing:
    """Return a `HeadMixing` initialized like a 1 x 1 convolution over `heads` maps.

    The released code of DeepViT and Refined-ViT mixes heads by such convolutions.
    """
    start = uniform(heads)
    return HeadMixing(use_bias, heads_out, start, start, **kwargs)


def mix_heads(kernel: Any, maps: Any, bias: Any = None, heads_last: bool = False) -> Any:
    """Mix the heads of `(batch, heads, queries, keys)`; `heads_last` as in `fast.mix`."""
    batch, heads, queries, keys = ops.shape(maps)
    # One batched product over (queries x keys) columns is several times faster than
    # transposing the heads to the last axis for a Dense.
    columns = ops.reshape(maps, (batch, heads, queries * keys))
    mixed = mix(kernel, columns, bias, heads_last)
    return ops.reshape(mixed, (batch, kernel.shape[0], queries, keys))


def MapNormalization(**kwargs) -> keras.layers.BatchNormalization:
    """Batch normalization of maps, with one mean and variance per head.

    DeepViT, Section 4.2 (the Norm of Equation 3). Epsilon 1e-5 and momentum 0.9 are
    PyTorch's defaults, which the public code uses.

    Args:
        **kwargs: Further arguments of `keras.layers.BatchNormalization`.
    """
    return keras.layers.BatchNormalization(axis=1, momentum=0.9, epsilon=1e-5, **kwargs)


def fold(norm: keras.layers.BatchNormalization, kernel: Any, bias: Any = None) -> tuple[Any, Any]:
    """Fold a batch normalization at inference into the linear layer before it.

    Args:
        norm: A built `BatchNormalization`.
        kernel: `(heads, ...)`, with one row per normalized head.
        bias: `(heads,)`, or None.

    Returns:
        The new kernel and the new bias.
    """
    scale, shift = affine(norm)
    kernel = ops.cast(kernel, "float32")
    per_head = ops.reshape(scale, (-1, *[1] * (len(kernel.shape) - 1)))
    if bias is not None:
        shift = shift + scale * ops.cast(bias, "float32")
    return kernel * per_head, shift


def affine(norm: keras.layers.BatchNormalization) -> tuple[Any, Any]:
    """Return the scale and the shift of a batch normalization at inference, one per channel."""
    mean, variance = (
        ops.cast(part, "float32") for part in (norm.moving_mean, norm.moving_variance)
    )
    scale = ops.rsqrt(variance + norm.epsilon)
    if norm.gamma is not None:
        scale = scale * ops.cast(norm.gamma, "float32")
    shift = -mean * scale
    return scale, shift if norm.beta is None else shift + ops.cast(norm.beta, "float32")


@register
class ReAttention(MapLayer):
    r"""New maps from all heads: $A' = s\,\mathrm{BN}(\Theta A + b)$.

    DeepViT, Section 4.2, Equation 3; BN runs over the head axis.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        map_scale: $s$; 1, except in the released DeepViT-S, where it is $1/\sqrt{d}$ with
            $d$ the size of a head.
        normalize: Whether to apply BN. Without it, $A' = s\,(\Theta A + b)$.
    """

    def __init__(self, map_scale: float = 1.0, normalize: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.map_scale = map_scale
        self.normalize = normalize

    def build(self, input_shape):
        heads = input_shape[1]
        self.reatten_matrix = convolution_1x1(
            heads, heads, use_bias=True, dtype=self.dtype_policy, name="reatten_matrix"
        )
        self.reatten_matrix.build(input_shape)
        if self.normalize:
            self.var_norm = MapNormalization(dtype=self.dtype_policy, name="var_norm")
            self.var_norm.build(input_shape)

    def call(self, maps, training=False):
        if self.normalize and self.folds(training):
            return self.folded()(maps)
        if (
            self.normalize
            and training
            and self.var_norm.trainable
            and not has_hooks(*children(self))
        ):
            return self.normalized(maps)
        maps = self.run(self.reatten_matrix, maps)
        if self.normalize:
            return batch_norm(self.var_norm, maps, training, scale=self.map_scale)
        return maps if self.map_scale == 1 else self.map_scale * maps

    def normalized(self, maps: Any) -> Any:
        r"""Return $s\,\mathrm{BN}(\Theta A + b)$ in training, as $s\,\mathrm{BN}(\Theta A)$.

        BN subtracts $b$ again. Half precision would lose the maps, whose spread is about 0.01,
        beside $b$, which starts within $\pm 1/\sqrt{\text{heads}}$; and rounding errors would
        take the place of its gradient, which is zero.
        """
        kernel, bias = self.reatten_matrix.kernel, self.reatten_matrix.bias
        # With a gradient, zero, since optimizers warn of variables without one.
        kernel = kernel + 0.0 * ops.expand_dims(bias, -1)
        mixed = mix_heads(kernel, maps)
        return batch_norm(self.var_norm, mixed, True, offset=bias, scale=self.map_scale)

    def folded(self) -> Callable[[Any], Any]:
        """Return `call` at inference as a single mix of heads, in float32.

        BN subtracts means that are several times the spread of the maps: half precision would
        round both by more than what is left.
        """
        with without_autocast():
            kernel, bias = (ops.cast(part, "float32") for part in self._folded_mix())

        def mixed(maps):
            y = mix_heads(kernel, ops.cast(maps, "float32"), bias)
            return ops.cast(y, self.compute_dtype)

        return mixed

    def inference_form(self) -> InferenceForm:
        """Return the form without BN and scale, which are folded into the mix."""
        kernel, bias = self._folded_mix()
        return InferenceForm(
            {"map_scale": 1.0, "normalize": False},
            {"reatten_matrix/kernel": kernel, "reatten_matrix/bias": bias},
            dropped=("var_norm",) if self.normalize else (),
        )

    def _folded_mix(self):
        kernel, bias = self.reatten_matrix.kernel, self.reatten_matrix.bias
        if self.normalize:
            kernel, bias = fold(self.var_norm, kernel, bias)
        return kernel * self.map_scale, bias * self.map_scale


@register
class LocalMapConvolution(MapLayer):
    r"""A depthwise convolution of the maps: Refiner's distributed local attention.

    Refiner, Section 3.3. Each head's map is convolved as an image of queries x keys:
    $$A'_{h,i,j} = \sum_{a,b} w_{h,a,b}\, A_{h,\,i+a-c,\,j+b-c}, \qquad c = (k-1)/2,$$
    with zero padding. Aggregating values with $A'$ aggregates them locally, then globally.
    In a masked map, it moves attention to masked keys beside allowed ones (`Attention` sets
    them to 0 again), and reads the rows of neighbouring queries, which the mask should leave
    out if they are padding.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        kernel_size: $k$, odd.
        constraint: Axes of the kernel (Table 4). None: queries and keys. `"spatial"`: the
            rows and columns of patches of `grid`, per query; keys before the patches
            (a class token) are left unchanged. `"row+column"`: the sum of a $1 \times k$
            convolution along the keys and a $k \times 1$ convolution along the queries, our
            interpretation of the table.
        grid: Rows and columns of patches, for `"spatial"`.
        use_bias: Whether a bias per head is added to its map.

    Raises:
        ValueError: if `kernel_size` is even, `constraint` is unknown, or `"spatial"` has no
            `grid` or one with more patches than keys.
    """

    constraints = (None, "spatial", "row+column")

    def __init__(
        self,
        kernel_size: int = 3,
        constraint: str | None = None,
        grid: tuple[int, int] | None = None,
        use_bias: bool = False,
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
        self.use_bias = use_bias

    def build(self, input_shape):
        _, heads, _, keys = input_shape
        if self.constraint == "spatial" and keys is not None and keys < self.grid[0] * self.grid[1]:
            raise ValueError(
                f"`grid` has more patches than there are keys. Received: grid={self.grid}, "
                f"keys={keys}."
            )
        side = self.kernel_size
        both = self.constraint == "row+column"
        self.kernel = self.add_weight(
            name="kernel",
            shape=(heads, 2, side) if both else (heads, 1, side, side),
            initializer=uniform(side if both else side**2),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(heads,), initializer="zeros")

    def call(self, maps):
        maps = self._convolve(maps, ops.cast(self.kernel, self.compute_dtype))
        return maps if self.bias is None else maps + ops.reshape(self.bias, (-1, 1, 1))

    def _convolve(self, maps, kernel):
        if self.constraint == "spatial":
            return self._convolve_rows(maps, kernel)
        if self.constraint == "row+column":
            along_keys = convolve_maps(maps, kernel[:, :1, None])
            return along_keys + convolve_maps(maps, kernel[:, 1:, :, None])
        return convolve_maps(maps, kernel)

    def _convolve_rows(self, maps, kernel):
        batch, heads, queries, keys = ops.shape(maps)
        patches = self.grid[0] * self.grid[1]
        prefix, maps = maps[..., : keys - patches], maps[..., keys - patches :]
        # Each query's row of the map, over the patches, is an image.
        images = ops.transpose(maps, (0, 2, 1, 3))
        images = ops.reshape(images, (batch * queries, heads, *self.grid))
        images = ops.reshape(convolve_maps(images, kernel), (batch, queries, heads, patches))
        return ops.concatenate([prefix, ops.transpose(images, (0, 2, 1, 3))], axis=-1)


@register
class Refinement(MapLayer):
    r"""The paper's refiner: expansion, local convolution, reduction, all linear.

    $A' = W_r(w * (W_e A))$ with $W_e$ from $H$ to $rH$ maps, $w *$ the convolution of
    `LocalMapConvolution`, $W_r$ back to $H$ (Refiner, Section 3.4). There are no biases: a
    bias on a map is uniform attention. Entries of the maps may leave [0, 1].

    Input: `(batch, heads, queries, keys)`. Output: the same shape; without reduction, with
    `expansion` times as many heads.

    Args:
        expansion: $r$, at least 1 (Table 1).
        kernel_size: Side of the convolution, odd (Figure 6).
        reduction: Whether to apply $W_r$ (Table 3).
        constraint: As in `LocalMapConvolution` (Table 4).
        grid: As in `LocalMapConvolution`.

    Raises:
        ValueError: if `expansion` is below 1, and as in `LocalMapConvolution`.
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
        expanded, dtype = self.expansion * heads, self.dtype_policy
        self.expand = convolution_1x1(heads, expanded, False, dtype=dtype, name="expand")
        self.expand.heads_last = True
        self.expand.build(input_shape)
        wide = self.expand.compute_output_shape(input_shape)
        self.local.build(wide)
        if self.reduction:
            self.reduce = convolution_1x1(expanded, heads, False, dtype=dtype, name="reduce")
            self.reduce.build(wide)

    def call(self, maps):
        maps = self.run(self.local, self.run(self.expand, maps))
        return self.run(self.reduce, maps) if self.reduction else maps


@register
class ResidualRefinement(MapLayer):
    r"""The refiner of the released Refined-ViT: nonlinear, normalized, residual.

    $$A' = s\,\mathrm{BN}(A + \mathrm{BN}(W_r\,\phi(w * \phi(W_e A)))), \qquad
    \phi = \mathrm{ReLU6} \circ \mathrm{BN},$$
    with $W_e$ to `expansion` times as many maps, $w *$ a convolution of each map, $W_r$
    back, and no biases. The paper's own form is `Refinement`. Without BN,
    $$A' = s\,(c \odot A + W_r\,\phi(w * \phi(W_e A + b_e) + b_w) + b_r), \qquad
    \phi = \mathrm{ReLU6},$$
    with biases and a weight $c$ per head (`skip`): the form at inference, after
    `keras_vitx.fuse`. With an `attention_mask`, the maps that $w *$ convolves are masked again,
    because BN and biases shift the masked entries.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        expansion: Ratio of inner maps to input maps, at least 1. The released S declares 6
            but does not pass it to its blocks: every released model has 3.
        kernel_size: Side of the convolution, odd.
        map_scale: $s$; in the released code $1/\sqrt d$, with $d$ the size of a head.
        normalize: Whether to apply BN.

    Raises:
        ValueError: if `expansion` is below 1 or `kernel_size` is even.
    """

    def __init__(
        self,
        expansion: int = 3,
        kernel_size: int = 3,
        map_scale: float = 1.0,
        normalize: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_expansion(expansion)
        self.expansion = expansion
        self.kernel_size = kernel_size
        self.map_scale = map_scale
        self.normalize = normalize
        dtype = self.dtype_policy
        self.depth_sep_conv = LocalMapConvolution(
            kernel_size, use_bias=not normalize, dtype=dtype, name="depth_sep_conv"
        )
        self.bn1 = self.bn2 = self.bn3 = self.adapt_bn = None
        if normalize:
            self.bn1 = MapNormalization(dtype=dtype, name="bn1")
            self.bn2 = MapNormalization(dtype=dtype, name="bn2")
            self.bn3 = MapNormalization(dtype=dtype, name="bn3")
            self.adapt_bn = MapNormalization(dtype=dtype, name="adapt_bn")

    def build(self, input_shape):
        heads, has_bias = input_shape[1], not self.normalize
        expanded, dtype = self.expansion * heads, self.dtype_policy
        self.conv_exp = convolution_1x1(heads, expanded, has_bias, dtype=dtype, name="conv_exp")
        self.conv_exp.heads_last = True
        self.conv_pro = convolution_1x1(expanded, heads, has_bias, dtype=dtype, name="conv_pro")
        self.conv_exp.build(input_shape)
        wide = self.conv_exp.compute_output_shape(input_shape)
        self.depth_sep_conv.build(wide)
        self.conv_pro.build(wide)
        if self.normalize:
            self.bn1.build(wide)
            self.bn2.build(wide)
            self.bn3.build(input_shape)
            self.adapt_bn.build(input_shape)
        else:
            self.skip = self.add_weight(name="skip", shape=(heads,), initializer="ones")

    def call(self, maps, training=False, attention_mask=None):
        if self.folds(training):
            refine = self.folded(attention_mask)
            if attention_mask is not None:
                return refine(maps)
            return in_pieces(refine, maps, self.expansion)
        if not self.normalize:
            # A hook may hold a reference to a tensor that `relu6` would overwrite.
            phi = ops.relu6 if has_hooks(*children(self)) else relu6
            y = masked(phi(self.run(self.conv_exp, maps)), attention_mask)
            y = self.run(self.conv_pro, phi(self.run(self.depth_sep_conv, y)))
            return self.map_scale * (maps * ops.reshape(self.skip, (-1, 1, 1)) + y)
        y = batch_norm_relu6(self.bn1, self.run(self.conv_exp, maps), training)
        y = masked(y, attention_mask)
        y = batch_norm_relu6(self.bn2, self.run(self.depth_sep_conv, y), training)
        y = maps + batch_norm(self.bn3, self.run(self.conv_pro, y), training)
        return batch_norm(self.adapt_bn, y, training, scale=self.map_scale)

    def folded(self, attention_mask: Any = None) -> Callable[[Any], Any]:
        """Return `call` at inference, with the normalizations folded into the kernels.

        The first mix is in float32, as in `ReAttention.folded`.
        """
        cast = partial(ops.cast, dtype=self.compute_dtype)
        with without_autocast():
            weights = self._folded_weights()
            inside = [
                ops.cast(weights[f"conv_exp/{name}"], "float32") for name in ("kernel", "bias")
            ]
            weights = {name: cast(value) for name, value in weights.items()}
        (local, outside) = (
            (weights[f"{name}/kernel"], weights[f"{name}/bias"])
            for name in ("depth_sep_conv", "conv_pro")
        )
        skip = ops.reshape(weights["skip"], (-1, 1, 1))

        def refine(maps):
            y = mix_heads(inside[0], ops.cast(maps, "float32"), inside[1], heads_last=True)
            y = masked(cast(relu6(y)), attention_mask)
            y = relu6(convolve_maps(y, local[0]) + ops.reshape(local[1], (-1, 1, 1)))
            return mix_heads(outside[0], y, outside[1]) + maps * skip

        return refine

    def inference_form(self) -> InferenceForm:
        """Return the form without BN and scale, which are folded into the other weights."""
        return InferenceForm(
            {"map_scale": 1.0, "normalize": False},
            self._folded_weights(),
            dropped=("bn1", "bn2", "bn3", "adapt_bn") if self.normalize else (),
        )

    def _folded_weights(self):
        """Return the weights of the equal form without BN and with $s = 1$, by name."""
        weights = {}
        for name, norm in (
            ("conv_exp", self.bn1),
            ("depth_sep_conv", self.bn2),
            ("conv_pro", self.bn3),
        ):
            layer = getattr(self, name)
            kernel, bias = (layer.kernel, layer.bias) if norm is None else fold(norm, layer.kernel)
            weights |= {f"{name}/kernel": kernel, f"{name}/bias": bias}
        if self.normalize:
            scale, shift = affine(self.adapt_bn)
            kernel, bias, skip = kernel * scale[:, None], bias * scale + shift, scale
        else:
            skip = self.skip
        last = {"conv_pro/kernel": kernel, "conv_pro/bias": bias, "skip": skip}
        return weights | {name: value * self.map_scale for name, value in last.items()}


@register
class Temperature(MapLayer):
    r"""A temperature of the softmax: $A' = A / \tau$ (DeepViT, Section 5.3, Equation 4).

    For use in `on_logits`. Values below 1 sharpen the maps.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        temperature: $\tau$, above 0. One that decreases linearly from block to block is
            the decayed temperature of Table 5.
        learnable: Whether $\tau$ is trained, with `temperature` as its initial value.

    Raises:
        ValueError: if `temperature` is not above 0.
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
    r"""Uniform maps, appended to the learned ones: $A_{ij} = 1/N$, with $N$ keys.

    Context Broadcasting, Section 2.2, Table 3. For use in `on_weights`; the attention then
    has one value head per map. With $H$ heads,
    `Attention(H - 1, head_size=dim // H, on_weights=[UniformHeads(1)])` replaces one head,
    the same with `UniformHeads(2)` does so at equal parameters, and
    `Attention(H, on_weights=[UniformHeads(1)])` appends one. With an `attention_mask`, $N$ is
    the number of keys that the query may attend.

    Input: `(batch, heads, queries, keys)`. Output: the same with `count` more heads.

    Args:
        count: Number of uniform maps, at least 1.

    Raises:
        ValueError: if `count` is below 1.
    """

    def __init__(self, count: int = 1, **kwargs):
        super().__init__(**kwargs)
        if count < 1:
            raise ValueError(f"`count` must be at least 1. Received: {count}.")
        self.count = count

    def heads_of(self, heads):
        return heads + self.count

    def call(self, maps, attention_mask=None):
        batch, _, queries, keys = ops.shape(maps)
        shape = (batch, self.count, queries, keys)
        if attention_mask is None:
            uniform = ops.full(shape, 1 / keys, dtype=maps.dtype)
        else:
            uniform = ops.broadcast_to(ops.cast(shares(attention_mask), maps.dtype), shape)
        return ops.concatenate([maps, uniform], axis=1)


def check_expansion(expansion: int) -> None:
    """Check the ratio of the attention expansion.

    Raises:
        ValueError: if it is below 1.
    """
    if expansion < 1:
        raise ValueError(
            "`expansion`, the ratio of inner maps to input maps, must be at least 1. "
            f"Received: expansion={expansion}."
        )
