"""The shapes and types of images and labels, as annotated."""

import numpy as np
import pytest
import shapes
from PIL import Image

from keras_vitx.data import images
from keras_vitx.data.augmentation import PRESETS, erasing, jitter_colors, mixing, windows
from keras_vitx.pixels import noise, pack_images
from keras_vitx.preprocessing import ModelInput, Preprocessing

pytestmark = pytest.mark.backend_free

PREPROCESSING = Preprocessing((0.5,) * 3, (0.5,) * 3)
RANDOM = np.random.default_rng(0)
BATCH = RANDOM.integers(0, 256, (4, 12, 10, 3), "uint8")
IMAGE, CLASSES = BATCH[0], np.arange(4, dtype="int32")
INPUT = ModelInput((8, 6, 3), PREPROCESSING)
FLOATS, SOFT = BATCH.astype("float32"), np.eye(4, dtype="float32")
BOXES = np.array([[1, 2, 3, 4, 5]] * 4, "int32")

CALLS = {
    "pixels_of": (images.pixels_of, IMAGE[..., 0]),
    "with_channels": (images.with_channels, IMAGE, 1),
    "fit_to_model": (images.fit_to_model, IMAGE, INPUT),
    "normalize": (images.normalize, BATCH, PREPROCESSING),
    "resized_crop": (windows.resized_crop, IMAGE, (8, 6), RANDOM),
    "random_shift": (windows.random_shift, IMAGE, RANDOM),
    "jitter_colors": (jitter_colors, IMAGE, 0.4, RANDOM),
    "augmentation": (PRESETS["rand_augment"].pixels, IMAGE, (8, 6), RANDOM, (0.5, 0.5, 0.5)),
    "erase_box": (erasing.erase_box, FLOATS[0].copy(), BOXES[0]),
    "mixing": (mixing.Mixing(), FLOATS.copy(), SOFT, RANDOM),
    "mixing of levels": (mixing.Mixing(), BATCH.copy(), SOFT, RANDOM),
    "soft_labels": (mixing.soft_labels, CLASSES, 4),
    "soft_labels of one": (mixing.soft_labels, CLASSES, 1),
    "shard_of_batch": (mixing.shard_of_batch, 8, 1, 2),
    "noise": (noise, (12, 10, 3)),
    "pack_images": (pack_images, BATCH, PREPROCESSING, BOXES),
}


@pytest.mark.parametrize("name", CALLS)
def test_shapes_are_those_of_the_annotations(name):
    function, *args = CALLS[name]
    shapes.call(function, *args)


def test_a_picture_of_pillow_is_cropped_to_pixels():
    shapes.call(windows.resized_crop, Image.fromarray(IMAGE), (8, 6), RANDOM)
