"""Teachers and students for the tests of distillation."""

import keras
import numpy as np
from harness import numbers

import keras_vitx as kv
from keras_vitx.layers import DenseHead, DistilledHead
from keras_vitx.models import Chain
from keras_vitx.training import Distillation

SHAPE = (2, 4, 3)
IMAGES = numbers((6, *SHAPE))
SOFT = np.random.default_rng(1).dirichlet(np.ones(4), 6).astype("float32")
OURS = kv.Preprocessing((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
THEIRS = kv.Preprocessing((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
PHOTOS = np.random.default_rng(0).integers(0, 256, (36, *SHAPE), "uint8"), np.arange(36) % 4
SHORT = {"epochs": 2, "batch_size": 9, "warmup_epochs": 0, "augmentation": None}
HEADS = {"token": DistilledHead, "patches": DenseHead}


def student_of(head="one", activation=None):
    """A linear student, whose gradients are known in closed form."""
    keras.utils.set_random_seed(0)
    shape, layer = ((-1,), keras.layers.Dense) if head == "one" else ((-1, 12), HEADS[head])
    layers = [keras.layers.Reshape(shape), layer(4, name="head")]
    if activation is not None:
        layers.append(keras.layers.Activation(activation, name="prediction"))
    return Chain(layers, SHAPE, preprocessing=OURS)


def teacher_of(size=SHAPE[:2], classes=4, activation=None, preprocessing=OURS, channels=3):
    """A teacher that reads every pixel."""
    keras.utils.set_random_seed(5)
    pool = keras.layers.Flatten() if None not in size else keras.layers.GlobalAveragePooling2D()
    images = keras.Input((*size, channels))
    layers = [images, pool, keras.layers.Dense(classes, activation)]
    teacher = keras.Sequential(layers, name="the_teacher")
    if preprocessing is not None:
        teacher.preprocessing = preprocessing
    return teacher


class Subclassed(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.preprocessing = inner, OURS

    def call(self, images):
        return self.inner(images)


class Given(keras.utils.PyDataset):
    """Two batches of images, labels and weights."""

    def __init__(self, labels=SOFT):
        super().__init__()
        self.arrays = IMAGES, labels, np.arange(6, dtype="float32")

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return tuple(array[3 * index : 3 * index + 3] for array in self.arrays)


def batches_of(head="one", kind="soft", subclassed=False, **teacher):
    """The first batch of a student, with labels of a teacher with these arguments."""
    made = teacher_of(**teacher)
    made = Subclassed(made) if subclassed else made
    return next(iter(Distillation(made, kind).batches(Given(), student_of(head))))
