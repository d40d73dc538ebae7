"""Segmentation: heads, inference and evaluation."""

import numpy as np
from harness import FAMILIES

from keras_vitx import features
from keras_vitx import segmentation as seg

BACKEND_FREE = True
ViT = FAMILIES["ViT"]
IMAGE, MASK = np.zeros((20, 30, 3), "uint8"), np.full((20, 30), 3, "uint8")


def upernet(*classes, **options):
    shape = {"input_shape": (32, 48, 3), "depth": 4}
    return seg.UperNet(features(ViT(**shape), range(4)), *classes, **options)


def linear():
    return seg.LinearHead(features(ViT(input_shape=(16, 24, 3))), 4)


def evaluate(*pair, **options):
    """Of a pair, after one without faults."""
    return seg.evaluate(linear(), [(IMAGE, MASK), pair], **options)


ERRORS = {
    ValueError: {
        "`classes`": lambda: upernet(0),
        "one factor per map, 4": lambda: upernet(5, scales=(1, 2)),
        "powers of two": lambda: upernet(5, scales=(3, 1, 1, 1)),
        "at least one position": lambda: upernet(5, scales=(1, 1, 1, 1 / 8)),
        "`dropout`": lambda: upernet(5, dropout=1.0),
        "one name per class, 5": lambda: upernet(5, class_names=["a"]),
        "`backbone` must return feature maps": lambda: seg.LinearHead(ViT(), 5),
        "`pairs[1]` must be integers ... (20, 30). Received: uint8 of shape (19, 30)": lambda: (
            evaluate(IMAGE, MASK[1:])
        ),
        "`pairs[1]` must be integers ... Received: float64": lambda: evaluate(IMAGE, MASK / 2),
        "`pairs[1]` must be integers ... (20, 30, 3)": lambda: evaluate(IMAGE, IMAGE),
        "`pairs[1]` must be in 0..3, or 255 ... Received: 4": lambda: evaluate(IMAGE, MASK + 1),
        "`pairs[1]` must be (image, mask). Received: a tuple of 1": lambda: evaluate(IMAGE),
        "`pairs[0]` must be (image, mask). Received: a str": lambda: seg.evaluate(linear(), "ade"),
        "`pairs` must be pairs (image, mask). Received: 3": lambda: seg.evaluate(linear(), 3),
        "`pairs` must have a pixel": lambda: seg.evaluate(linear(), []),
        "`batch_size` must be an integer in [1, inf)": lambda: evaluate(IMAGE, MASK, batch_size=0),
        "`model` must return logits...(None, 5)": lambda: seg.predict(ViT(), IMAGE),
        "`model` must return logits": lambda: seg.evaluate(ViT(), IMAGE),
        "`mode` must be one of 'whole', 'slide'": lambda: evaluate(IMAGE, MASK, mode="windows"),
        "`stride` must be": lambda: seg.predict(linear(), IMAGE, "slide", stride=20),
    }
}
