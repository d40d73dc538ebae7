"""From images to tokens, and from tokens to one vector an image."""

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register


@register
class PatchEmbedding(Layer):
    """A linear projection of each square patch of an image.

    Input: `(batch, height, width, channels)`, channels last on every backend.
    Output: `(batch, patches, dim)`, patches row by row.

    Args:
        dim: Width of a token.
        patch_size: Side of a patch in pixels.

    Raises:
        ValueError: at build, when a side of the image is no multiple of it.
    """

    def __init__(self, dim: int, patch_size: int = 16, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.patch_size = patch_size

    def build(self, input_shape):
        for side in input_shape[1:3]:
            if side is None or side % self.patch_size:
                raise ValueError(
                    "Height and width of the images must be multiples of `patch_size`. "
                    f"Received: images of shape {tuple(input_shape[1:])}, "
                    f"patch_size={self.patch_size}."
                )
        self.proj = keras.layers.Conv2D(
            self.dim,
            self.patch_size,
            strides=self.patch_size,
            data_format="channels_last",
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            dtype=self.dtype_policy,
            name="proj",
        )
        self.proj.build(input_shape)

    def call(self, images):
        x = self.proj(images)
        batch, rows, columns, dim = ops.shape(x)
        return ops.reshape(x, (batch, rows * columns, dim))


@register
class PositionEmbedding(Layer):
    """A learned vector for each place, added to the token that stands there.

    Input and output: `(batch, prefix tokens + rows * columns, dim)`.

    Args:
        grid: Rows and columns of patches.
        num_prefix_tokens: Leading tokens that belong to no patch (a class token)
            and have a position of their own.
    """

    def __init__(self, grid: tuple[int, int], num_prefix_tokens: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, input_shape):
        rows, columns = self.grid
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(1, self.num_prefix_tokens + rows * columns, input_shape[-1]),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def call(self, x):
        return x + self.embeddings


@register
class ClassToken(Layer):
    """A learned token put before all others. Where it enters is its place in the list.

    Input: `(batch, tokens, dim)`. Output: `(batch, 1 + tokens, dim)`.
    """

    def build(self, input_shape):
        self.token = self.add_weight(
            name="token",
            shape=(1, 1, input_shape[-1]),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def call(self, x):
        token = ops.broadcast_to(
            ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, self.token.shape[-1])
        )
        return ops.concatenate([token, x], axis=1)


@register
class TokenPooling(Layer):
    """One vector an image from its tokens.

    Input: `(batch, prefix tokens + patches, dim)`. Output: `(batch, dim)`.

    Args:
        pooling: `"token"` takes the class token, `"avg"` and `"max"` the mean and
            the maximum over the patches.
        num_prefix_tokens: Leading tokens that are no patches.

    Raises:
        ValueError: for another `pooling`.
    """

    poolings = ("token", "avg", "max")

    def __init__(self, pooling: str = "token", num_prefix_tokens: int = 1, **kwargs):
        super().__init__(**kwargs)
        if pooling not in self.poolings:
            raise ValueError(f"`pooling` must be one of {self.poolings}. Received: {pooling!r}.")
        self.pooling = pooling
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, x):
        if self.pooling == "token":
            return x[:, 0]
        reduce = ops.mean if self.pooling == "avg" else ops.max
        return reduce(x[:, self.num_prefix_tokens :], axis=1)
