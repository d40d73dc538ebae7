"""Heads that turn feature maps into one class per pixel."""

from collections.abc import Sequence
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops
from keras.layers import BatchNormalization, Concatenate, Conv2D, Conv2DTranspose

from keras_vitx.checks import check_argument, check_counts
from keras_vitx.models.common import scale_factor
from keras_vitx.segmentation.model import Segmenter

LAST = "channels_last"


def UperNet(
    backbone: keras.Model,
    classes: int,
    channels: int = 512,
    scales: Sequence[float] | None = (4, 2, 1, 0.5),
    pool_sizes: Sequence[int] = (1, 2, 3, 6),
    dropout: float = 0.1,
    auxiliary: int | None = 256,
    class_names: Sequence[str] | None = None,
    name: str = "upernet",
) -> Segmenter:
    """UperNet (Xiao et al., 2018): pyramid pooling and top-down fusion of several maps.

    As for Context Broadcasting's Table 7, where `channels` is 192, 384 and 512 for ViT-Ti, -S and
    -B, on four blocks. A "convolution" has no bias and is followed by BatchNormalization and ReLU:

    1. The maps are rescaled by 2 x 2 transposed convolutions of stride 2 (with BatchNormalization
       and GELU between them) or by max pooling.
    2. The last map is averaged over grids of `pool_sizes`, each followed by a 1 x 1 convolution and
       resized to the map; a 3 x 3 convolution combines them and the map.
    3. The other maps have a 1 x 1 convolution; from the coarsest to the finest, each map is resized
       and added to the next finer one, followed by a 3 x 3 convolution.
    4. All are resized to the finest and combined by a 3 x 3 convolution, followed by dropout of
       channels and the 1 x 1 classifier, whose logits are resized to the image (bilinear).

    Args:
        backbone: A model that returns feature maps, one per level, such as
            `keras_vitx.features(model, [2, 5, 8, 11])`.
        classes: Number of classes.
        channels: Width of the head.
        scales: Scale factor of each map, a power of two; None if the maps already have different
            scales.
        pool_sizes: Sides of the grids of the pyramid pooling.
        dropout: Dropout rate of the channels before the classifier.
        auxiliary: Width of an auxiliary head on the last but one map, a 3 x 3 convolution and a
            classifier, used only in training; None for no such head.
        class_names: Names of the classes.
        name: Name of the model.

    Returns:
        A `Segmenter`, with logits `(batch, height, width, classes)` in float32.

    Raises:
        ValueError: if an argument is out of range, or does not fit the number of maps.
    """
    images, inputs = _inputs(backbone, classes, class_names)
    check_counts(channels=channels, **{} if auxiliary is None else {"auxiliary": auxiliary})
    check_counts(**{f"pool_sizes[{i}]": size for i, size in enumerate(pool_sizes)})
    if auxiliary is not None and len(inputs) < 2:
        raise ValueError(
            f"`auxiliary` must be None for a backbone with one map. Received: {auxiliary}."
        )
    scales = (1,) * len(inputs) if scales is None else tuple(scales)
    if len(scales) != len(inputs):
        raise ValueError(
            f"`scales` must have one factor per map, {len(inputs)}. Received: {scales}."
        )
    maps = [_rescale(x, scales[i], f"scale_{i}") for i, x in enumerate(inputs)]
    *others, last = maps
    pooled = [
        _resize(_convolution(GridPooling(size)(last), channels, 1, f"pool_{size}"), last)
        for size in pool_sizes
    ]
    x = _convolution(Concatenate()([last, *pooled]), channels, 3, "pyramid")
    levels = [x]
    for index in reversed(range(len(others))):
        lateral = _convolution(others[index], channels, 1, f"lateral_{index}")
        x = lateral + _resize(x, lateral)
        levels.insert(0, _convolution(x, channels, 3, f"level_{index}"))
    x = levels[0]
    if others:
        fused = Concatenate()([_resize(level, levels[0]) for level in levels])
        x = _convolution(fused, channels, 3, "fusion")
    outputs = [_classify(x, classes, images, dropout, "head")]
    if auxiliary is not None:
        x = _convolution(maps[-2], auxiliary, 3, "auxiliary")
        outputs.append(_classify(x, classes, images, dropout, "auxiliary_head"))
    head = keras.Model(inputs, outputs, name=f"{name}_head")
    return Segmenter(backbone, head, class_names=class_names, name=name)


def LinearHead(
    backbone: keras.Model,
    classes: int,
    dropout: float = 0.0,
    class_names: Sequence[str] | None = None,
    name: str = "linear_head",
) -> Segmenter:
    """A linear classifier of each patch; its logits are resized to the image (bilinear).

    If there are several maps, they are resized to the first and concatenated. BatchNormalization
    makes the classifier independent of their scale.

    Args:
        backbone: A model that returns one feature map or several.
        classes: Number of classes.
        dropout: Dropout rate of the channels before the classifier.
        class_names: Names of the classes.
        name: Name of the model.

    Returns:
        A `Segmenter`, with logits `(batch, height, width, classes)` in float32.

    Raises:
        ValueError: if an argument is out of range, or the backbone returns no maps.
    """
    images, inputs = _inputs(backbone, classes, class_names)
    maps = [_resize(x, inputs[0]) for x in inputs]
    x = Concatenate()(maps) if len(maps) > 1 else maps[0]
    logits = _classify(_norm("norm")(x), classes, images, dropout, "head")
    head = keras.Model(inputs, logits, name=f"{name}_head")
    return Segmenter(backbone, head, class_names=class_names, name=name)


def _convolution(x, channels, side, name):
    """Convolution without bias, BatchNormalization, ReLU."""
    x = Conv2D(channels, side, padding="same", use_bias=False, data_format=LAST, name=name)(x)
    return ops.relu(_norm(f"{name}_norm")(x))


def _norm(name):
    return BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)


def _rescale(x, scale, name):
    """Scale the sides of a map by a power of two; a ValueError for other factors."""
    factor = scale_factor(scale, x.shape[1:3])
    if scale < 1:
        return keras.layers.MaxPooling2D(factor, data_format=LAST, name=name)(x)
    for index in range(factor.bit_length() - 1):
        if index:
            x = ops.gelu(_norm(f"{name}_norm_{index}")(x), approximate=False)
        x = Conv2DTranspose(x.shape[-1], 2, 2, data_format=LAST, name=f"{name}_up_{index}")(x)
    return x


def _resize(x, to):
    """Resize maps to others or to `(height, width)`: bilinear, half-pixel centers."""
    size = to if isinstance(to, tuple) else to.shape[1:3]
    if x.shape[1:3] == size:
        return x
    return ops.image.resize(x, size, interpolation="bilinear", data_format=LAST)


def _classify(x, classes, images, dropout, name):
    """Return the logits of each pixel, resized to the images."""
    check_argument("dropout", dropout, Annotated[float, "[0, 1)"])
    if dropout:
        x = keras.layers.SpatialDropout2D(dropout, data_format=LAST, name=f"{name}_dropout")(x)
    initializer = keras.initializers.RandomNormal(stddev=0.01)
    options = {"data_format": LAST, "kernel_initializer": initializer, "dtype": "float32"}
    return _resize(Conv2D(classes, 1, name=name, **options)(x), images)


def _inputs(backbone, classes, class_names):
    """Return the size of the images, and an input for each map of the backbone."""
    check_counts(classes=classes)
    if class_names is not None and len(class_names) != classes:
        raise ValueError(
            f"`class_names` must have one name per class, {classes}. Received: {len(class_names)}."
        )
    maps = keras.tree.flatten(getattr(backbone, "output", None))
    if not maps or any(x is None or len(x.shape) != 4 or None in x.shape[1:] for x in maps):
        raise ValueError(
            "`backbone` must return feature maps (batch, rows, columns, dim), as from "
            f"`keras_vitx.features`. Received: {getattr(backbone, 'name', backbone)!r}."
        )
    return backbone.input_shape[1:3], [keras.Input(x.shape[1:]) for x in maps]


@keras.saving.register_keras_serializable(package="keras_vitx")
class GridPooling(keras.layers.Layer):
    r"""The mean of each of the cells, which may overlap, of a grid that covers a map.

    Cell $i$ of $s$ covers the rows from $\lfloor i R / s \rfloor$ up to, but not including,
    $\lceil (i + 1) R / s \rceil$ of $R$; likewise for columns. Keras's `AdaptiveAveragePooling2D`
    has the same cells, but fails in TensorFlow's graphs for $s > R$.

    Input: `(batch, rows, columns, channels)`. Output: `(batch, size, size, channels)`.

    Args:
        size: $s$.
    """

    def __init__(self, size: int, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, x):
        rows, columns = (ops.convert_to_tensor(self.cells(n), x.dtype) for n in x.shape[1:3])
        # One axis at a time: of three factors, PyTorch orders the products by the batch size.
        return ops.einsum("jc,bicd->bijd", columns, ops.einsum("ir,brcd->bicd", rows, x))

    def cells(self, length: int) -> np.ndarray:
        """Return the weight of each of `length` positions in each cell, (size, length)."""
        cell, position = np.arange(self.size)[:, None], np.arange(length)
        first, last = cell * length // self.size, -(-(cell + 1) * length // self.size)
        inside = (position >= first) & (position < last)
        return (inside / inside.sum(1, keepdims=True)).astype("float32")

    def compute_output_shape(self, input_shape: Any) -> tuple:
        return input_shape[0], self.size, self.size, input_shape[-1]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "size": self.size}
