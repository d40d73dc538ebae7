"""Segmentation: heads, sources of masks, inference, measures and pictures."""

import numpy as np
from harness import FAMILIES, save_picture

from keras_vitx import features
from keras_vitx import segmentation as seg
from keras_vitx.segmentation.metrics import metrics_of

BACKEND_FREE = True
ViT = FAMILIES["ViT"]
IMAGE, MASK = np.zeros((20, 30, 3), "uint8"), np.full((20, 30), 3, "uint8")


def upernet(*classes, **options):
    shape = {"input_shape": (32, 48, 3), "depth": 4}
    return seg.UperNet(features(ViT(**shape), range(4)), *classes, **options)


def linear():
    return seg.LinearHead(features(ViT(input_shape=(16, 24, 3))), 4)


def pair(tmp_path, mask=MASK[..., None], names=("0.png", "0.png")):
    """The pair of a directory with an image and a mask."""
    save_picture(tmp_path / "images" / names[0], IMAGE)
    save_picture(tmp_path / "masks" / names[1], mask)
    return seg.load_dataset(tmp_path).train.pair(0, 3)


ERRORS = {
    ValueError: {
        "`classes`": lambda: upernet(0),
        "one factor per map, 4": lambda: upernet(5, scales=(1, 2)),
        "powers of two": lambda: upernet(5, scales=(3, 1, 1, 1)),
        "at least one position": lambda: upernet(5, scales=(1, 1, 1, 1 / 8)),
        "`dropout`": lambda: upernet(5, dropout=1.0),
        "one name per class, 5": lambda: upernet(5, class_names=["a"]),
        "`backbone` must return feature maps": lambda: seg.LinearHead(ViT(), 5),
        "size (20, 30). Received: (19, 30)": lambda tmp_path: pair(tmp_path, MASK[1:, :, None]),
        "0.png must be in 0..2, or 255 ... Received: 3": lambda tmp_path: pair(tmp_path),
        "without one in": lambda tmp_path: pair(tmp_path, names=("0.png", "1.png")),
        "one number per pixel": lambda tmp_path: pair(tmp_path, IMAGE),
        "must have one of the directories images, ...Received: 0": lambda tmp_path: (
            seg.load_dataset(tmp_path)
        ),
        "`source` must be a path, a name or arrays. Received: 3": lambda: seg.load_dataset(3),
        "`model` must return logits...(None, 5)": lambda: seg.predict(ViT(), IMAGE),
        "`model` must return logits": lambda: seg.evaluate(ViT(), IMAGE),
        "must end in .png": lambda tmp_path: seg.save_mask(MASK, tmp_path / "mask.jpg"),
        "integers 0..255...(20, 30)": lambda tmp_path: seg.save_mask(
            MASK + 0.5, tmp_path / "m.png"
        ),
        "`mode` must be one of 'whole', 'slide'": lambda: seg.evaluate(
            linear(), (IMAGE[None], MASK[None]), mode="windows"
        ),
        "`split` must be one of 'train', or None": lambda: seg.evaluate(
            linear(), (IMAGE[None], MASK[None]), "validation"
        ),
        "`stride` must be": lambda: seg.predict(linear(), IMAGE, "slide", stride=20),
        "`steps`": lambda: seg.compile(linear(), 0),
        "`mask` must have the image's size": lambda: seg.overlay(IMAGE, MASK[:1]),
        "must have a pixel": lambda: metrics_of(np.zeros((2, 2), int)),
    }
}
