"""Segment images: UperNet on the shipped checkpoint, on scenes composed of Fashion-MNIST.

    python examples/segmentation/train.py

Writes `segmented.png`: scenes, their masks, and the predictions.
"""

import keras_vitx as kv

import keras
import numpy as np
from PIL import Image

import scenes
from upernet import upernet

EPOCHS, BATCH = 10, 16


def evaluate(model, pairs, perturb=None):
    """Return the mean intersection over union of (image, mask) pairs, and the accuracy of pixels.

    `perturb` is one of `keras_vitx.robustness`; this function is an `evaluate` of its `curve`.
    """
    counts = np.zeros((len(scenes.NAMES),) * 2, "int64")
    for index, (image, mask) in enumerate(pairs):
        pixels = kv.preprocess_input(image[None], model)
        if perturb is not None:
            pixels = perturb(pixels, None, index)
        found = model.predict_on_batch(pixels)["head"][0].argmax(-1)
        np.add.at(counts, (mask[mask != 255], found[mask != 255]), 1)
    correct = counts.diagonal()
    iou = correct / (counts.sum(0) + counts.sum(1) - correct).clip(1)
    return {
        "mean_iou": iou.mean(), "iou": iou, "images": len(pairs),
        "accuracy": correct.sum() / counts.sum(),
    }  # fmt: skip


keras.utils.set_random_seed(0)
train, validation = scenes.load()
# Patches of 4 pixels: maps of 1/2 to 1/16 of the image.
backbone = kv.features(kv.CaiT_Mini(weights="cifar10"), range(4), size=(32, 32))
model = upernet(
    backbone, len(scenes.NAMES), channels=32, scales=(2, 1, 0.5, 0.25), pool_sizes=(1, 2)
)
model.preprocessing = backbone.preprocessing
images, masks = map(np.stack, zip(*train, strict=True))
batches = -(-len(images) // BATCH)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
schedule = keras.optimizers.schedules.PolynomialDecay(2e-3, EPOCHS * batches, 0.0)
model.compile(
    keras.optimizers.AdamW(schedule, weight_decay=0.01),
    loss={"head": loss, "auxiliary": loss},
    loss_weights={"head": 1.0, "auxiliary": 0.4},
)
labels = {"head": masks, "auxiliary": masks}
model.fit(kv.preprocess_input(images, model), labels, BATCH, epochs=EPOCHS, verbose=2)
metrics = evaluate(model, validation)
for name, iou in zip(scenes.NAMES, metrics["iou"], strict=True):
    print(f"{name:12} {iou:6.1%}")
print(f"mean IoU {metrics['mean_iou']:.1%}, pixel accuracy {metrics['accuracy']:.1%}")

columns = []
for image, mask in validation[:6]:
    found = model.predict_on_batch(kv.preprocess_input(image[None], model))["head"][0].argmax(-1)
    three = image, scenes.COLORS[mask], scenes.COLORS[found]
    columns += [np.vstack([Image.fromarray(one).resize((128, 128), 0) for one in three])]  # nearest
Image.fromarray(np.hstack(columns)).save("segmented.png")
