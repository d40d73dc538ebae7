"""The augmentation built from the layers of keras-cv 0.9, which run in TensorFlow on the CPU.

It has the settings of `Augmentation`, but it is not that of the recipes:

- crop: bilinear without antialiasing; the aspect ratio is uniform, and relative to the image's; a
  box that exceeds the image is clipped.
- RandAugment: 10 operations; no Invert, Posterize, Rotate or Sharpness, solarization is one
  operation, and brightness, contrast and translation are uniform up to the magnitude. Pixels
  from beyond the image are reflected.
- color jitter: brightness is added, not multiplied.
- erasing: the height and the width of the box are independent, and it is cut off at the border.

It is not the default for these reasons, and because keras-cv is no longer maintained: its layers
moved to Keras.
"""

import math
from collections.abc import Sequence

import numpy as np

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.erasing import AREA
from keras_vitx.data.augmentation.rand_augment import MAXIMUM, RandAugment
from keras_vitx.data.sources.tfds import keep_tensorflow_off_the_gpu
from keras_vitx.text import needs_extra


class KerasCV:
    """The layers of keras-cv for an augmentation.

    Their random state is partly TensorFlow's own, and global: it is set per batch, of which the
    images come one after the other.

    Args:
        augmentation: The settings.
        size: (height, width) of the results.

    Raises:
        ImportError: if keras-cv is not installed.
    """

    def __init__(self, augmentation: Augmentation, size: tuple[int, int]):
        keep_tensorflow_off_the_gpu()
        try:
            import keras_cv
            import tensorflow as tf
        except ImportError as error:
            raise ImportError(
                needs_extra('`augmentation` by="keras_cv" needs keras-cv', "keras-cv")
            ) from error
        # Layers without a seed share the global generator.
        self.set_seed, self.generator = tf.random.set_seed, tf.random.Generator.from_seed(0)
        before = tf.random.get_global_generator()
        tf.random.set_global_generator(self.generator)
        try:
            layers = _layers(keras_cv.layers, augmentation, size)
            erasing = _erasing(keras_cv.layers, augmentation.erasing)
        finally:
            tf.random.set_global_generator(before)

        def in_turn(layers):
            @tf.function(input_signature=[tf.TensorSpec((None, None, None))])
            def run(image):
                with tf.device("CPU:0"):
                    for layer in layers:
                        image = layer(image)
                    return image

            return lambda images: np.stack([run(image).numpy() for image in images])

        self._pixels, self.erase = in_turn(layers), in_turn(erasing)

    def pixels(self, images: Sequence[np.ndarray], seed: int) -> np.ndarray:
        """Return the augmented images of a batch, uint8 (n, *size, channels).

        `erase` then replaces a random box of each normalized image by noise.
        """
        self.generator.reset_from_seed(seed)
        # TensorFlow prepares its functions anew after it, which takes about a second.
        self.set_seed(seed)
        found = self._pixels([image.astype("float32") for image in images])
        return np.rint(np.clip(found, 0, 255)).astype("uint8")


def _layers(layers, augmentation: Augmentation, size: tuple[int, int]) -> list:
    found = []
    if augmentation.crop == "random_resized":
        found.append(layers.RandomCropAndResize(size, augmentation.scale, augmentation.ratio))
    elif augmentation.crop == "shift":
        found.append(layers.RandomTranslation(1 / 8, 1 / 8, fill_mode="constant"))
    if augmentation.flip:
        found.append(layers.RandomFlip("horizontal", rate=augmentation.flip))
    if augmentation.rand_augment is not None:
        settings = RandAugment.named(augmentation.rand_augment)
        found.append(
            layers.RandAugment(
                value_range=(0, 255),
                augmentations_per_image=settings.operations,
                magnitude=settings.magnitude / MAXIMUM,
                magnitude_stddev=settings.std / MAXIMUM,
                rate=settings.probability,
            )
        )
    if x := augmentation.color_jitter:
        # A saturation f / (1 - f) in 1 - x..1 + x.
        saturation = (1 - x) / (2 - x), (1 + x) / (2 + x)
        found.append(layers.RandomColorJitter((0, 255), x, x, saturation, hue_factor=0.0))
    return found


def _erasing(layers, probability: float) -> list:
    if not probability:
        return []
    sides = tuple(math.sqrt(area) for area in AREA)
    box = layers.RandomCutout(sides, sides, fill_mode="gaussian_noise")
    # `RandomApply` does not work in graphs.
    return [layers.RandomAugmentationPipeline([box], 1, rate=probability)]
