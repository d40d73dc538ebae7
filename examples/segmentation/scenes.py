"""Scenes composed of Fashion-MNIST's articles, with their masks."""

import keras_vitx as kv

import numpy as np
from PIL import Image

SIDE = 32
NAMES = ("background", "clothing", "shoes", "bag")
KIND = np.array([1, 1, 1, 1, 1, 2, 1, 2, 3, 2])  # of each class of Fashion-MNIST
COLORS = np.full((256, 3), 255, "uint8")
COLORS[: len(NAMES)] = (0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0)


def scene(split, random):
    """Return a scene of three articles and its mask.

    The articles have random colors and sizes, on a random background, which is class 0. The rims of
    articles are ignored.
    """
    ramp = np.linspace(random.uniform(0, 255, 3), random.uniform(0, 255, 3), SIDE)
    image = (ramp[:, None] + random.normal(0, 12, (SIDE, SIDE, 3))).clip(0, 255)
    mask = np.zeros((SIDE, SIDE), "int32")
    for index in random.integers(len(split), size=3):
        side = random.integers(14, 22)
        article = Image.fromarray(split.images[index][..., 0]).resize((side, side))
        shade = np.asarray(article, "float32")[..., None] / 255
        top, left = random.integers(SIDE - side + 1, size=2)
        window = slice(top, top + side), slice(left, left + side)
        inside, rim = shade[..., 0] > 0.2, shade[..., 0] > 0.02
        color = random.uniform(80, 255, 3)
        image[window] = np.where(rim[..., None], shade * color, image[window])
        labels = np.where(inside, KIND[split.labels[index]], 255)
        mask[window] = np.where(rim, labels, mask[window])
    return image.astype("uint8"), mask


def scenes(split, seed):
    """Return one scene for every five images of a split."""
    random = np.random.default_rng(seed)
    return [scene(split, random) for _ in range(len(split) // 5)]


def load():
    """Return the pairs (image, mask) for training and for validation."""
    articles = kv.data.load_dataset("fashion_mnist")
    return scenes(articles.train, 0), scenes(articles.test, 1)
