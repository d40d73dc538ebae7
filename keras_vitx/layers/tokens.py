"""From images to tokens, and from tokens to one vector per image."""

from collections.abc import Sequence
from typing import Literal

import keras
import numpy as np

from keras_vitx.checks import check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import Layer, build_all, register
from keras_vitx.layers.initializers import initializers, normal, uniform
from keras_vitx.positions import resample


@register
class PatchEmbedding(Layer):
    """A linear projection of each square patch of an image.

    Input: `(batch, height, width, channels)`, channels last on every backend.
    Output: `(batch, patches, dim)`, patches row by row.

    Args:
        dim: Width of a token.
        patch_size: Side of a patch in pixels. Without `stride`, it divides the sides of the image.
        stride: Distance between patches in pixels; None is `patch_size`. With a smaller stride,
            patches overlap (PiT) and remaining pixels at the edge are dropped.
        initialization: Initial weights, as in `keras_vitx.layers.initializers`.
        use_bias: Whether the projection has a bias. That of CLIP has none.
    """

    def __init__(
        self,
        dim: int,
        patch_size: int = 16,
        stride: int | None = None,
        initialization: str = "uniform",
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.dim, self.initialization, self.use_bias = dim, initialization, use_bias
        self.patch_size, self.stride = patch_size, stride

    def build(self, input_shape):
        self.new_grid = patch_grid(input_shape[1:], self.patch_size, self.stride)
        form = {"strides": self.stride or self.patch_size, "use_bias": self.use_bias}
        self.proj = _convolution(self, "proj", self.dim, input_shape, self.patch_size, **form)

    def call(self, images):
        return _flatten(self.run(self.proj, images))


@register
class ConvStem(Layer):
    """A patch embedding with convolutions before the patch projection.

    A 7 x 7 convolution of stride 2, then 3 x 3 convolutions, each without bias and followed by
    BatchNormalization and ReLU; then a linear projection of each patch. DeepViT (Section 5.4) has
    64 and 64 channels, Refined-ViT 32, 64 and 128.

    Input: `(batch, height, width, channels)`. Output: `(batch, patches, dim)`, patches row by row.

    Args:
        dim: Width of a token.
        channels: Channels of each convolution.
        patch_size: Side of a patch in pixels of the image, even. It divides the image's sides.
    """

    initialization = "uniform"

    def __init__(
        self, dim: int, channels: Sequence[int] = (64, 64), patch_size: int = 16, **kwargs
    ):
        super().__init__(**kwargs)
        self.dim = dim
        self.channels = tuple(channels)
        self.patch_size = patch_size

    def build(self, input_shape):
        self.new_grid = patch_grid(input_shape[1:], self.patch_size)
        self.convolutions, self.norms = [], []
        shape = tuple(input_shape)
        form = {"momentum": 0.9, "epsilon": 1e-5, "dtype": self.dtype_policy}
        for index, channels in enumerate(self.channels, start=1):
            # `call` pads the first: with a stride, Keras's "same" differs from the public code.
            side, own = (7, {"strides": 2}) if index == 1 else (3, {"padding": "same"})
            own["use_bias"] = False
            layer = _convolution(self, f"conv{index}", channels, shape, side, **own)
            self.convolutions.append(layer)
            shape = (None, input_shape[1] // 2, input_shape[2] // 2, channels)
            self.norms.append(keras.layers.BatchNormalization(**form, name=f"bn{index}"))
            self.norms[-1].build(shape)
        half = self.patch_size // 2
        self.proj = _convolution(self, "proj", self.dim, shape, half, strides=half)

    def call(self, images, training=False):
        x = ops.pad(images, ((0, 0), (3, 3), (3, 3), (0, 0)))
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x = ops.relu(self.run(norm, self.run(layer, x), training))
        return _flatten(self.run(self.proj, x))


@register
class TokenDownsampling(Layer):
    """Fewer and wider tokens: PiT's pooling between stages (Heo et al., 2021).

    A 3 x 3 depthwise convolution of stride 2 on the patches, with `dim / width` output channels per
    channel, and a Dense on the class tokens. Each side of the grid is halved and rounded up.

    Input: `(batch, class tokens + rows * columns, width)`.
    Output: `(batch, class tokens + new rows * new columns, dim)`.

    Args:
        dim: New width of a token, a multiple of the old one.
        grid: Rows and columns of patches of the input.
        num_prefix_tokens: Number of leading tokens that are not patches.
        initialization: Initial weights of the Dense, as in `keras_vitx.layers.initializers`.
    """

    def __init__(
        self,
        dim: int,
        grid: tuple[int, int],
        num_prefix_tokens: int = 1,
        initialization: str = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.dim, self.initialization = dim, initialization
        self.grid, self.num_prefix_tokens = tuple(grid), num_prefix_tokens
        self.new_grid = tuple((side + 1) // 2 for side in grid)

    def build(self, input_shape):
        width = input_shape[-1]
        rows, columns = self.grid
        starts = {"depthwise_initializer": uniform(9), "bias_initializer": uniform(9)}
        form = {"data_format": "channels_last", "dtype": self.dtype_policy, "name": "conv"}
        form["depth_multiplier"] = self.dim // width
        self.conv = keras.layers.DepthwiseConv2D(3, strides=2, **starts, **form)
        self.conv.build((None, rows + 2, columns + 2, width))
        self.fc = self.dense(self.dim, "fc", (None, self.num_prefix_tokens, width))

    def call(self, x, training=False):
        # Under PyTorch, a split at given indices waits for the device.
        prefix, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        batch, _, width = ops.shape(patches)
        patches = ops.reshape(patches, (batch, *self.grid, width))
        patches = ops.pad(patches, ((0, 0), (1, 1), (1, 1), (0, 0)))
        kernel, bias = (ops.cast(v, self.compute_dtype) for v in (self.conv.kernel, self.conv.bias))
        patches = ops.depthwise_conv(patches, kernel, 2) + bias
        return ops.concatenate([self.run(self.fc, prefix, training), _flatten(patches)], axis=1)


@register
class PositionEmbedding(Layer):
    """A learned vector per position, added to the token at that position.

    Input and output: `(batch, prefix tokens + rows * columns, dim)`. A `.keras` or `.weights.h5`
    file stores the grid, and the vectors are resampled when they are loaded into another one.

    Args:
        grid: Rows and columns of patches.
        num_prefix_tokens: Number of leading tokens that are not patches (a class token).
    """

    def __init__(self, grid: tuple[int, int], num_prefix_tokens: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.grid, self.num_prefix_tokens = tuple(grid), num_prefix_tokens

    def build(self, input_shape):
        rows, columns = self.grid
        shape = (1, self.num_prefix_tokens + rows * columns, input_shape[-1])
        self.embeddings = self.add_weight(name="embeddings", shape=shape, initializer=normal())

    def call(self, x):
        return x + self.embeddings

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["grid"] = np.array(self.grid)

    def load_own_variables(self, store):
        if "grid" not in store:
            return super().load_own_variables(store)
        values, old = store["0"], tuple(map(int, store["grid"]))
        if old != self.grid:
            values = resample(values, old, self.grid, self.num_prefix_tokens)
        self.embeddings.assign(values)


@register
class ClassToken(Layer):
    """A learned class token, prepended to the tokens; it enters where the layer is in the list.

    Input: `(batch, tokens, dim)`. Output: `(batch, count + tokens, dim)`.

    Args:
        count: Number of tokens, at least 1, for networks that keep several in one variable.
    """

    initializer = staticmethod(normal)

    def __init__(self, count: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def build(self, input_shape):
        shape = (1, self.count, input_shape[-1])
        self.token = self.add_weight(name="token", shape=shape, initializer=self.initializer())

    def call(self, x):
        token = ops.cast(self.token, x.dtype)
        token = ops.broadcast_to(token, (ops.shape(x)[0], *token.shape[1:]))
        return ops.concatenate([token, x], axis=1)


@register
class RegisterTokens(ClassToken):
    """Learned tokens before the patches, which only attention reads (Darcet et al., Section 2.2).

    Input: `(batch, tokens, dim)`. Output: `(batch, count + tokens, dim)`. They start near zero, as
    in DINOv2's code. The argument is that of `ClassToken`.
    """

    initializer = staticmethod(lambda: normal(1e-6))


@register
class TokenPooling(Layer):
    """One vector per image, from its tokens.

    Input: `(batch, prefix tokens + patches, dim)`. Output: `(batch, dim)`, or twice as wide.

    Args:
        pooling: `"token"`, the class token; `"avg"` or `"max"`, the mean or maximum of the patches;
            `"token_avg"`, token and mean, side by side (DINOv2).
        num_prefix_tokens: Number of leading tokens that are not patches.
    """

    poolings = ("token", "avg", "max", "token_avg")

    def __init__(self, pooling: str = "token", num_prefix_tokens: int = 1, **kwargs):
        super().__init__(**kwargs)
        check_argument("pooling", pooling, Literal[self.poolings])
        self.pooling = pooling
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, x):
        if self.pooling == "token":
            return x[:, 0]
        reduce = ops.max if self.pooling == "max" else ops.mean
        y = reduce(x[:, self.num_prefix_tokens :], axis=1)
        return ops.concatenate([x[:, 0], y], axis=-1) if self.pooling == "token_avg" else y


@register
class AttentionPooling(Attention):
    r"""One vector per image: a learned query reads the tokens (SigLIP, arXiv 2303.15343).

    As `Attention`, with queries $Q = u W_q + b_q$ of a learned $u$, and an MLP behind it:
    $$z = A V W_o + b_o, \qquad y = z + \mathrm{mlp}(\mathrm{LayerNorm}(z)).$$

    Input: `(batch, tokens, dim)`. Output: `(batch, dim)`; maps and mask have one row.

    Args:
        num_heads: Number of heads.
        mlp: A layer on tokens.
        epsilon: Epsilon of the norm.
        **kwargs: Further arguments of `Attention`, but for `gate`.
    """

    def __init__(self, num_heads: int, mlp: keras.layers.Layer, epsilon: float = 1e-6, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.mlp, self.epsilon = mlp, epsilon
        mlp.name = "mlp"
        norm = {"epsilon": epsilon, "dtype": self.dtype_policy, "name": "norm"}
        self.norm = keras.layers.LayerNormalization(**norm)

    def build_projections(self, input_shape):
        shape = (1, 1, input_shape[-1])
        self.latent = self.add_weight(shape, normal(shape[-1] ** -0.5), name="latent")
        self.q = self.dense(self.width, "q", shape, self.qkv_bias)
        self.kv = self.dense(self.width + self.value_width, "kv", input_shape, self.qkv_bias)
        build_all([self.norm, self.mlp], shape)

    def projections(self, x, training=False):
        query = self.run(self.q, ops.cast(self.latent, x.dtype), training)
        query = ops.broadcast_to(query, (ops.shape(x)[0], *query.shape[1:]))
        query, pair = map(self.split_heads, (query, self.run(self.kv, x, training)))
        return query, pair[:, :, : self.num_heads], pair[:, :, self.num_heads :]

    def maps_shape(self, tokens):
        return (None, self.num_heads, 1, tokens)

    def project(self, y, training=False):
        y = super().project(y, training)
        return (y + self.run_all([self.norm, self.mlp], y, training))[:, 0]


def _convolution(parent, name, filters, input_shape, side, **arguments):
    """Return a built square `Conv2D`, a child of `parent`."""
    starts = initializers(parent.initialization, side * side * input_shape[-1])
    form = {"data_format": "channels_last", "dtype": parent.dtype_policy, "name": name}
    layer = keras.layers.Conv2D(filters, side, **starts, **form, **arguments)
    layer.build(input_shape)
    return layer


def _flatten(images):
    """Reshape `(batch, rows, columns, dim)` to tokens, row by row."""
    batch, rows, columns, dim = ops.shape(images)
    return ops.reshape(images, (batch, rows * columns, dim))


def patch_grid(
    image_shape: Sequence[int], patch_size: int, stride: int | None = None
) -> tuple[int, int]:
    """Return the rows and columns of patches in an image `(height, width, ...)` that they fit."""
    sides = tuple(image_shape[:2])
    if any(s is None or s < patch_size or (not stride and s % patch_size) for s in sides):
        fit, hint = "of at least" if stride else "that are multiples of", ""
        if not stride and None not in sides:
            fitting = (max(1, int(side / patch_size + 0.5)) * patch_size for side in sides)
            hint = f"; the nearest is {tuple(fitting)}"
        raise ValueError(
            f"`input_shape` must have sides {fit} the patch size {patch_size}. "
            f"Received: input_shape={tuple(image_shape)}{hint}."
        )
    rows, columns = ((side - patch_size) // (stride or patch_size) + 1 for side in sides)
    return rows, columns
