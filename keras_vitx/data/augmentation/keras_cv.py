"""Augmentation with the layers of keras-cv 0.9, which run in TensorFlow on the CPU.

It differs from that of the recipes: crops are not antialiased, RandAugment lacks Invert, Posterize,
Rotate and Sharpness, brightness is added, and erased boxes are clipped at the border. keras-cv is
no longer maintained.
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
    """The layers of keras-cv for an augmentation; an ImportError if it is not installed.

    Their random state, which is partly global in TensorFlow, is set for each batch, whose images
    are augmented one after the other.
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
        previous = tf.random.get_global_generator()
        tf.random.set_global_generator(self.generator)
        try:
            layers = _layers(keras_cv.layers, augmentation, size)
            erasing = _erasing(keras_cv.layers, augmentation.erasing)
        finally:
            tf.random.set_global_generator(previous)

        def one_by_one(layers):
            @tf.function(input_signature=[tf.TensorSpec((None, None, None))])
            def run(image):
                with tf.device("CPU:0"):
                    for layer in layers:
                        image = layer(image)
                    return image

            return lambda images: np.stack([run(image).numpy() for image in images])

        self._pixels, self.erase = one_by_one(layers), one_by_one(erasing)

    def pixels(self, images: Sequence[np.ndarray], seed: int) -> np.ndarray:
        """Return augmented images, uint8 (n, *size, channels); `erase` takes them normalized."""
        self.generator.reset_from_seed(seed)
        # Slow, since TensorFlow then retraces its functions.
        self.set_seed(seed)
        pixels = self._pixels([image.astype("float32") for image in images])
        return np.rint(np.clip(pixels, 0, 255)).astype("uint8")


def _layers(layers, augmentation: Augmentation, size: tuple[int, int]) -> list:
    chain = []
    if augmentation.crop == "random_resized":
        chain.append(layers.RandomCropAndResize(size, augmentation.scale, augmentation.ratio))
    elif augmentation.crop == "shift":
        chain.append(layers.RandomTranslation(1 / 8, 1 / 8, fill_mode="constant"))
    if augmentation.flip:
        chain.append(layers.RandomFlip("horizontal", rate=augmentation.flip))
    if augmentation.rand_augment is not None:
        rand_augment = RandAugment.named(augmentation.rand_augment)
        strength, std = rand_augment.magnitude / MAXIMUM, rand_augment.std / MAXIMUM
        operations, probability = rand_augment.operations, rand_augment.probability
        chain.append(layers.RandAugment((0, 255), operations, strength, std, probability))
    if x := augmentation.color_jitter:
        # A factor f multiplies the saturation by f / (1 - f), here in 1 - x..1 + x.
        saturation = (1 - x) / (2 - x), (1 + x) / (2 + x)
        chain.append(layers.RandomColorJitter((0, 255), x, x, saturation, hue_factor=0.0))
    return chain


def _erasing(layers, probability: float) -> list:
    if not probability:
        return []
    sides = tuple(math.sqrt(area) for area in AREA)
    box = layers.RandomCutout(sides, sides, fill_mode="gaussian_noise")
    # `RandomApply` does not work in graphs.
    return [layers.RandomAugmentationPipeline([box], 1, rate=probability)]
