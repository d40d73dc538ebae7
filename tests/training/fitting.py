"""A small model, images and batches for the tests of training."""

import contextlib
import json

import keras
import numpy as np

from keras_vitx.training import AverageWeights

PREPROCESSING = {"mean": (0.5,), "std": (0.5,), "crop_ratio": 1.0, "interpolation": "bicubic"}


def small(classes=2, activation="softmax"):
    """A network of one layer, enough for tests of `fit` itself."""
    keras.utils.set_random_seed(0)
    head = keras.layers.Dense(classes, activation=activation)
    layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), head]
    model = keras.Sequential(layers, name="small")
    model.preprocessing = PREPROCESSING
    return model


def images_of(count=48, seed=0):
    """Images, uint8 (count, 4, 4, 1), bright on the left (class 0) or on the right (class 1)."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(seed).integers(0, 120, (count, 4, 4, 1))
    images[labels == 0, :, :2] += 100
    images[labels == 1, :, 2:] += 100
    return images.astype("uint8"), labels.astype("int32")


def ready(images):
    return (images / 127.5 - 1).astype("float32")


TRAIN, VALIDATION, TEST = images_of(48), images_of(14, 1), images_of(22, 2)
AGES = np.where(TRAIN[1], 23.0, 41.0)
# It gets worse and worse: the images of validation have the other labels.
WORSE = TRAIN, (images_of(40, 3)[0], 1 - images_of(40, 3)[1])
# A flipped image would have the wrong label.
SHORT = {
    "epochs": 2, "batch_size": 16, "warmup_epochs": 0, "learning_rate": 1e-2, "augmentation": None
}  # fmt: skip


class Batched(keras.utils.PyDataset):
    """User-defined batches."""

    def __init__(self, images, labels, size=16):
        super().__init__()
        self.images, self.labels, self.size = ready(images), labels, size

    def __len__(self):
        return -(-len(self.images) // self.size)

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.images[part], self.labels[part]


class Unlabeled(Batched):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


def named(path, images, labels, names):
    """Write a file of images with names of classes; return its path."""
    np.savez(path, x_train=images, y_train=labels, class_names=np.array(names))
    return path


def best_of(history):
    """Return the index of the highest accuracy, and of the lowest loss among several."""
    return int(np.lexsort([history["val_loss"], -np.array(history["val_accuracy"])])[0])


def crossentropy(model, images, labels):
    outputs = model.predict(ready(images), verbose=0)
    return -np.log(outputs[np.arange(len(labels)), labels]).mean()


@contextlib.contextmanager
def averaged(model):
    """Between two epochs, when a model has the moving average of its weights."""
    average = AverageWeights()
    average.set_model(model)
    average.on_epoch_end(0)
    yield
    average.on_epoch_begin(1)


def run_of(output):
    return json.loads((output / "run.json").read_text())


def same_weights(one, other):
    """Compare two models, or a model and its weights, bit for bit."""
    other = other.get_weights() if isinstance(other, keras.Model) else other
    np.testing.assert_equal(one.get_weights(), other)
