"""Augmentation with the layers of keras-cv 0.9, which run in TensorFlow on the CPU.

It differs from that of the recipes: crops are not antialiased, RandAugment lacks Invert, Posterize,
Rotate and Sharpness, and brightness is added. keras-cv is no longer maintained.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from keras_vitx.data.augmentation.rand_augment import MAXIMUM, RandAugment
from keras_vitx.data.sources.tfds import keep_tensorflow_off_the_gpu

LOCK = threading.Lock()


def augment(
    augmentation: Any, images: Sequence[Any], size: tuple[int, int], seed: int
) -> UInt8[np.ndarray, "n height width 3"]:
    """Apply the steps of an `Augmentation` before normalization to RGB images of any sizes."""
    with LOCK:  # TensorFlow's seed is that of the process.
        run = _function_of(augmentation, size)
        pixels = run([np.asarray(image, "float32") for image in images], seed)
    return np.rint(np.clip(pixels, 0, 255)).astype("uint8")


@functools.lru_cache(maxsize=4)
def _function_of(augmentation: Any, size: tuple[int, int]) -> Callable[..., np.ndarray]:
    """Return a function of images and a seed that augments the images one after the other."""
    keep_tensorflow_off_the_gpu()
    import keras_cv
    import tensorflow as tf

    # Layers without a seed share the global generator.
    generator, previous = tf.random.Generator.from_seed(0), tf.random.get_global_generator()
    tf.random.set_global_generator(generator)
    try:
        layers = _layers(keras_cv.layers, augmentation, size)
    finally:
        tf.random.set_global_generator(previous)

    @tf.function(input_signature=[tf.TensorSpec((None, None, None))])
    def one(image):
        with tf.device("CPU:0"):
            for layer in layers:
                image = layer(image)
            return image

    def run(images, seed):
        generator.reset_from_seed(seed)
        tf.random.set_seed(seed)  # Slow, since TensorFlow then retraces its functions.
        return np.stack([one(image).numpy() for image in images])

    return run


def _layers(layers: Any, augmentation: Any, size: tuple[int, int]) -> list:
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
