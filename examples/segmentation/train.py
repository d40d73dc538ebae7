"""Segment images: UperNet on the shipped checkpoint, on scenes composed of Fashion-MNIST.

    python examples/segmentation/train.py [DIRECTORY]

Each scene has three articles, in random colors and sizes, on a random background; a pixel has
the kind of its article, the background is class 0, and the rims of articles are ignored. A
DIRECTORY holds images/ and masks/ (or Pascal VOC's or ADE20K's directories) and class_names.txt.
Writes `segmented.png`, predictions last. Ten epochs, four minutes of a core, find no bags yet.
"""

import sys

import keras
import numpy as np
from PIL import Image

import keras_vitx as kv
from keras_vitx import segmentation

SIDE, EPOCHS, BATCH = 32, 10, 16
NAMES = ("background", "clothing", "shoes", "bag")
KIND = np.array([1, 1, 1, 1, 1, 2, 1, 2, 3, 2])  # of each class of Fashion-MNIST
keras.utils.set_random_seed(0)


def scene(split, random):
    """Return a scene of three articles and its mask."""
    ramp = np.linspace(random.uniform(0, 255, 3), random.uniform(0, 255, 3), SIDE)
    image = (ramp[:, None] + random.normal(0, 12, (SIDE, SIDE, 3))).clip(0, 255)
    mask = np.zeros((SIDE, SIDE), "int32")
    for index in random.integers(split.size, size=3):
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
    images, masks = zip(*(scene(split, random) for _ in range(split.size // 5)), strict=True)
    return np.stack(images), np.stack(masks)


if len(sys.argv) > 1:
    source = segmentation.load_dataset(sys.argv[1])
else:
    articles = kv.data.load_dataset("fashion_mnist")
    pairs = scenes(articles.train, 0), scenes(articles.test, 1)
    source = segmentation.load_dataset(pairs, class_names=NAMES)
names = source.class_names
# Patches of 4 pixels: maps of 1/2 to 1/16 of the image.
backbone = kv.features(kv.CaiT_Mini(weights="cifar10"), range(4), size=(SIDE, SIDE))
model = segmentation.UperNet(
    backbone, len(names), channels=32, scales=(2, 1, 0.5, 0.25), auxiliary=32, class_names=names
)
train = segmentation.pipelines(source, model, BATCH, scales=(0.8, 1.25), jitter=0.3).train
epochs = EPOCHS if len(sys.argv) < 2 else max(1, 300 // len(train))
segmentation.compile(model, epochs * len(train), learning_rate=2e-3)
model.fit(train, epochs=epochs, verbose=2)
measures = segmentation.evaluate(model, source)
for name, iou in zip(names, measures["iou"], strict=True):
    print(f"{name:12} {iou:6.1%}")
print(f"mean IoU {measures['mean_iou']:.1%}, pixel accuracy {measures['accuracy']:.1%}")

split, rows = source.validation or source.train, []
for index in range(min(6, split.size)):
    image, mask = split.pair(index, len(names))
    found = segmentation.predict(model, image).argmax(-1)
    three = [image, segmentation.overlay(image, mask), segmentation.overlay(image, found)]
    rows += [np.vstack([Image.fromarray(one).resize((128, 128), 0) for one in three])]  # nearest
Image.fromarray(np.hstack(rows)).save("segmented.png")
