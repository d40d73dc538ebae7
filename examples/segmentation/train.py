"""Segment images: UperNet on the shipped checkpoint, on scenes composed of Fashion-MNIST.

    python examples/segmentation/train.py [DIRECTORY]

A DIRECTORY of images and masks is as `load` in masks.py says. Writes `segmented.png`, predictions
last. Ten epochs, four minutes of a core, find no bags yet.
"""

import sys

import keras
import masks
import numpy as np
import scenes
from crops import Crops
from PIL import Image

import keras_vitx as kv
from keras_vitx import segmentation

EPOCHS, BATCH = 10, 16


@keras.saving.register_keras_serializable(package="examples")
class Schedule(keras.optimizers.schedules.PolynomialDecay):
    """Polynomial decay, times a linear warm-up in the first tenth of the steps."""

    def __call__(self, step):
        warmup = (keras.ops.cast(step, "float32") + 1) / max(1, self.decay_steps // 10)
        return super().__call__(step) * keras.ops.minimum(warmup, 1.0)


keras.utils.set_random_seed(0)
train, validation, names = masks.load(sys.argv[1]) if len(sys.argv) > 1 else scenes.load()
# Patches of 4 pixels: maps of 1/2 to 1/16 of the image.
backbone = kv.features(kv.CaiT_Mini(weights="cifar10"), range(4), size=(32, 32))
model = segmentation.UperNet(
    backbone, len(names), channels=32, scales=(2, 1, 0.5, 0.25), auxiliary=32, class_names=names
)
batches = Crops(train, model, min(BATCH, len(train)), scales=(0.8, 1.25), jitter=0.3)
epochs = EPOCHS if len(sys.argv) < 2 else max(1, 300 // len(batches))
model.compile(
    kv.training.AdamW(Schedule(2e-3, epochs * len(batches), 0.0), weight_decay=0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255),
    metrics=[
        segmentation.MeanIoU(len(names), ignore_class=255, sparse_y_pred=False, name="mean_iou")
    ],
)
model.fit(batches, epochs=epochs, verbose=2)
metrics = segmentation.evaluate(model, validation)
for name, iou in zip(names, metrics["iou"], strict=True):
    print(f"{name:12} {iou:6.1%}")
print(f"mean IoU {metrics['mean_iou']:.1%}, pixel accuracy {metrics['accuracy']:.1%}")

columns = []
for index in range(min(6, len(validation))):
    image, mask = validation[index]
    found = segmentation.predict(model, image).argmax(-1)
    three = [image, masks.overlay(image, mask), masks.overlay(image, found)]
    columns += [np.vstack([Image.fromarray(one).resize((128, 128), 0) for one in three])]  # nearest
Image.fromarray(np.hstack(columns)).save("segmented.png")
