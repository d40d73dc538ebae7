"""UperNet (Xiao et al., 2018) on feature maps of one scale, as for Context Broadcasting's Table 7.

A "convolution" has no bias and is followed by BatchNormalization and ReLU:

1. The maps are rescaled, by 2 x 2 transposed convolutions of stride 2 or by max pooling.
2. The last map is averaged over grids of `pool_sizes`, each followed by a 1 x 1 convolution and
   resized to the map; a 3 x 3 convolution combines them and the map.
3. The other maps have a 1 x 1 convolution; from the coarsest to the finest, each is resized and
   added to the next finer one, followed by a 3 x 3 convolution.
4. All are resized to the finest, combined by a 3 x 3 convolution, and classified.
"""

import keras
from keras import layers, ops


def upernet(
    backbone, classes, channels=512, scales=(4, 2, 1, 0.5), pool_sizes=(1, 2, 3, 6), dropout=0.1
):
    """Return a model from images to the logits of each pixel, by the head and the auxiliary head.

    `backbone` returns maps `(batch, rows, columns, dim)`, as from `keras_vitx.features`; `scales`
    are their factors, powers of two. Both outputs, `"head"` and `"auxiliary"` (a classifier of the
    last but one map, used in training only), are `(batch, height, width, classes)`.
    """
    images = keras.Input(backbone.input_shape[1:])
    maps = [rescale(x, scale) for x, scale in zip(backbone(images), scales, strict=True)]
    *others, last = maps
    pooled = [convolution(average(last, size), channels) for size in pool_sizes]
    x = convolution(
        layers.Concatenate()([last, *(resize(one, last) for one in pooled)]), channels, 3
    )
    levels = [x]
    for other in reversed(others):
        lateral = convolution(other, channels)
        x = lateral + resize(x, lateral)
        levels.insert(0, convolution(x, channels, 3))
    fused = layers.Concatenate()([resize(level, levels[0]) for level in levels])
    auxiliary = convolution(maps[-2], channels, 3)
    outputs = {
        "head": classify(convolution(fused, channels, 3), classes, images, dropout),
        "auxiliary": classify(auxiliary, classes, images, dropout),
    }
    return keras.Model(images, outputs, name="upernet")


def rescale(x, scale):
    """Multiply the sides of a map by a power of two."""
    if scale < 1:
        return layers.MaxPooling2D(round(1 / scale))(x)
    for index in range(int(scale).bit_length() - 1):
        if index:
            x = ops.gelu(layers.BatchNormalization()(x), approximate=False)
        x = layers.Conv2DTranspose(x.shape[-1], 2, 2)(x)
    return x


def average(x, size):
    """Average a map over a grid of cells."""
    if size == 1:  # Keras's pooling to 1 x 1 raises in TensorFlow's graphs (3.15).
        return ops.mean(x, axis=(1, 2), keepdims=True)
    return layers.AdaptiveAveragePooling2D(size)(x)


def convolution(x, channels, side=1):
    """Convolution without bias, BatchNormalization, ReLU."""
    x = layers.Conv2D(channels, side, padding="same", use_bias=False)(x)
    return ops.relu(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))


def resize(x, to):
    """Resize maps to the sides of others: bilinear, half-pixel centers."""
    return ops.image.resize(x, to.shape[1:3], interpolation="bilinear")


def classify(x, classes, images, dropout):
    """Return the logits of each pixel, resized to the images."""
    x = layers.SpatialDropout2D(dropout)(x)
    return resize(layers.Conv2D(classes, 1, dtype="float32")(x), images)
