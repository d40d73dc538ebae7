"""Random changes of training images, as TensorFlow operations in a tf.data pipeline.

A function takes uint8 images and a seed, an int32 pair, and gives uint8 images
back; the same seed gives the same images. TensorFlow is imported when one is
called, not before.
"""

import math
from collections.abc import Callable

from keras_vitx.text import nearest


def crop_flip(images, seed):
    """Shift by up to an eighth of the size, and flip left to right by chance.

    The images get a black border of an eighth of their size on each side; a
    window of the old size is cut at random.

    Args:
        images: uint8 (n, height, width, channels).
        seed: int32 (2,).

    Returns:
        uint8 (n, height, width, channels).
    """
    import tensorflow as tf

    n, (height, width, channels) = tf.shape(images)[0], images.shape[1:]
    seeds = tf.random.split(seed, 3)
    top, left = height // 8, width // 8
    padded = tf.pad(images, [(0, 0), (top, top), (left, left), (0, 0)])
    rows = _integers(n, 2 * top, seeds[0])[:, None] + tf.range(height)
    columns = tf.range(width)
    flipped = _integers(n, 1, seeds[1])[:, None] == 1
    columns = tf.where(flipped, columns[::-1], columns)
    columns += _integers(n, 2 * left, seeds[2])[:, None]
    cut = tf.gather(padded, rows, axis=1, batch_dims=1)
    cut = tf.gather(cut, columns, axis=2, batch_dims=1)
    return tf.ensure_shape(cut, (None, height, width, channels))


def random_resized_crop(images, seed, size=None, scale=(0.08, 1.0)):
    """Cut a random window, resize it, and flip left to right by chance.

    The window covers a random share of the image's area; the logarithm of its
    proportions is uniform between 3:4 and 4:3. A window larger than the image
    in one direction is cut to fit.

    Args:
        images: uint8 (n, height, width, channels), or one image (height, width,
            channels), which is resized bicubic with antialiasing. A batch is
            resized bilinear, which suits a `size` no smaller than the windows.
        seed: int32 (2,).
        size: (height, width) of the result; by default that of the images.
        scale: The least and the largest share of the area.

    Returns:
        uint8 (n, *size, channels) or (*size, channels).
    """
    import tensorflow as tf

    shape = tf.shape(images)
    single = images.shape.rank == 3
    size = size or images.shape[-3:-1]
    n = 1 if single else shape[0]
    height, width = tf.cast(shape[-3], tf.float32), tf.cast(shape[-2], tf.float32)
    area, proportion, top, left, flip = tf.unstack(
        tf.random.stateless_uniform((5, n), seed), axis=0
    )
    side = tf.sqrt((scale[0] + area * (scale[1] - scale[0])) * height * width)
    stretch = tf.exp((proportion - 0.5) * math.log(4 / 3))  # the root of the proportions
    crop_height = tf.clip_by_value(side / stretch, 1.0, height)
    crop_width = tf.clip_by_value(side * stretch, 1.0, width)
    top, left = top * (height - crop_height), left * (width - crop_width)

    if single:
        box = [tf.cast(tf.round(value[0]), tf.int32) for value in (top, left)]
        box += [tf.cast(value[0], tf.int32) for value in (crop_height, crop_width)]
        window = images[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
        window = tf.image.resize(window, size, "bicubic", antialias=True)
        result = tf.where(flip[0] < 0.5, window[:, ::-1], window)
    else:
        # The op reads from the centre of the first pixel to the centre of the last.
        boxes = [top, left, top + crop_height - 1, left + crop_width - 1]
        spans = [height - 1, width - 1, height - 1, width - 1]
        boxes = tf.stack(
            [box / tf.maximum(span, 1.0) for box, span in zip(boxes, spans, strict=True)], axis=-1
        )
        # A window whose right edge comes first is read mirrored.
        boxes = tf.where(flip[:, None] < 0.5, tf.gather(boxes, [0, 3, 2, 1], axis=1), boxes)
        result = tf.image.crop_and_resize(images, boxes, tf.range(n), size)
    result = tf.cast(tf.clip_by_value(tf.round(result), 0.0, 255.0), tf.uint8)
    return tf.ensure_shape(result, (*images.shape[:-3], *size, images.shape[-1]))


AUGMENTATIONS: dict[str, Callable] = {
    "crop_flip": crop_flip,
    "random_resized_crop": random_resized_crop,
}


def augmentation_named(name: str | None) -> Callable | None:
    """Return the function of a name, or None for None.

    Raises:
        ValueError: when the name is unknown; it gives the nearest ones.
    """
    if name is None:
        return None
    if name not in AUGMENTATIONS:
        raise ValueError(f"augmentation: {name!r} is unknown. {nearest(name, AUGMENTATIONS)}")
    return AUGMENTATIONS[name]


def _integers(n, high: int, seed):
    """Return n integers in 0..high."""
    import tensorflow as tf

    return tf.random.stateless_uniform((n,), seed, maxval=high + 1, dtype=tf.int32)
