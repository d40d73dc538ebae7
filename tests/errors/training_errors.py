"""`fit`, `evaluate`, recipes, the task of labels, teachers, devices."""

import keras
import numpy as np
from harness import FAMILIES
from training import teachers
from training.fitting import AGES, SHORT, TRAIN, Batched, Unlabeled, named, small
from training.teachers import batches_of, student_of, teacher_of

import keras_vitx as kv
from keras_vitx import training
from keras_vitx.losses import PerHead, SmoothedCrossentropy
from keras_vitx.outputs import Outputs, outputs_of
from keras_vitx.training import Distillation, Recipe
from keras_vitx.training.devices import Devices
from keras_vitx.training.devices.replicas import rows_of
from keras_vitx.training.prepare import match_head
from keras_vitx.training.task import task_of

BACKEND_FREE = True
IMAGES, LABELS = TRAIN
NUMBERS, OWN = (IMAGES, LABELS / 7), Batched(*TRAIN)
MINE = Recipe("mine")
NAMED = Batched(*TRAIN)
NAMED.class_names = ["cat", "dog", "eel"]
SEVERAL = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]])
FLOATS = np.array([[0.2, -1.3, 7.5], [1.0, 0.0, 2.0]])


class Once:
    """Batches that come once."""

    def __init__(self):
        self.batches = iter([OWN[0], OWN[1]])

    def __iter__(self):
        return self.batches


def fit(source, model=None, **arguments):
    return kv.fit(small() if model is None else model, source, **SHORT | arguments)


def fit_named(path, classes=2, **arguments):
    return fit(named(path / "named.npz", *TRAIN, ("left", "right")), small(classes), **arguments)


def distil(**arguments):
    return kv.fit(student_of(), teachers.PHOTOS, **teachers.SHORT | arguments)


def evaluate(source, *arguments, model=None, **options):
    return kv.evaluate(small() if model is None else model, source, *arguments, **options)


def task(kind, classes, labels):
    return task_of(Outputs(kind, classes), labels)


def ends_in(layer, model=None):
    """A model, and a layer behind it."""
    model = small() if model is None else model
    return keras.Model(model.inputs, layer(model.outputs[0]))


def quantized():
    model = small()
    model.quantize("int8")
    model.class_names = ("left", "right")
    return model


def two_outputs():
    teacher = teacher_of()
    twice = keras.Model(teacher.inputs, [teacher.outputs[0]] * 2)
    twice.preprocessing = teachers.OURS
    return twice


def compiled(model, **arguments):
    model.compile(**arguments)
    return model


def frozen():
    model = small()
    model.trainable = False
    return model


def of_imagenet(classes):
    return kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=classes)


ERRORS = {
    ValueError: {
        # fit
        "classes=2 for the classes left, right. ...3": lambda tmp_path: fit_named(tmp_path, 3),
        "classes=3 for the classes cat, dog, eel. ...2": lambda: fit(NAMED),
        "an output for each class of arrays: classes=3. Received: 2": lambda: fit(
            (IMAGES, LABELS + 1)
        ),
        "classes=1 and classifier_activation=None": lambda: fit((IMAGES, AGES)),
        "softmax' or 'sigmoid'. Received: ('relu'": lambda: fit("no/folder", small(2, "relu")),
        "`source` must have batches (images, labels)": lambda: fit(Unlabeled(*TRAIN)),
        "`source` must give its batches again": lambda: fit(Once(), steps_per_epoch=4),
        "must not be an iterator...: pass a `PyD": lambda: fit(batch for batch in OWN),
        "put pooling and a `keras": lambda: fit(TRAIN, FAMILIES["ViT"](include_top=False)),
        "`patience` must be None": lambda: fit(TRAIN, recipe=MINE, result="last", patience=2),
        "`class_weight` ...'up'": lambda tmp_path: fit_named(tmp_path, class_weight={"up": 1.0}),
        "`class_weight` ... Received: 2": lambda tmp_path: fit_named(tmp_path, class_weight={2: 1}),
        "`fraction` must not be set for your own batches": lambda: fit(OWN, fraction=0.5),
        "`mixup` must not be set for your own batches": lambda: fit(OWN, mixup=0.5),
        "`model` must have a trainable variable": lambda: fit(TRAIN, frozen()),
        "`callbacks` must not set ...ReduceLROnPlateau": lambda: fit(
            TRAIN, callbacks=[keras.callbacks.ReduceLROnPlateau()]
        ),
        "`model` must not be compiled ... `learning_rate` ... Received: 'optimizer'": lambda: fit(
            TRAIN, compiled(small(), optimizer="sgd")
        ),
        "... for `label_smoothing`": lambda: kv.fit(
            compiled(small(), loss="mse"), TRAIN, label_smoothing=0.1
        ),
        "`model` must be functional, with one output": lambda: fit(
            OWN, compiled(two_outputs(), loss="mse")
        ),
        "a classifier of the data's": lambda: match_head(quantized(), ("a", "b")),
        # evaluate
        "`split` must be ... Received: 'test'": lambda: evaluate(TRAIN, "test"),
        "`split` must be None for your own batches": lambda: evaluate(OWN, "test"),
        "for regression": lambda: evaluate(NUMBERS, model=small(1, None), predictions=True),
        "`crop_ratio` must be None": lambda: evaluate(OWN, crop_ratio=0.5),
        "`crop_ratio` ... for cropped batches": lambda: evaluate((OWN, OWN), crop_ratio=0.5),
        "`restrict` must be False": lambda: evaluate(
            (np.zeros((4, 16, 16, 3), "uint8"), [0, 1] * 2), model=of_imagenet(4), restrict=True
        ),
        # The task
        "3 ... (softmax) and labels of shape (3, 3) (int64": lambda: task("softmax", 3, SEVERAL),
        "3 ... (softmax) ...float64... classifier_activation=": lambda: task("softmax", 3, FLOATS),
        "A head of 1 ... (logits)": lambda: task("logits", 1, np.array([0, 1, 1])),
        "A head of 3 ... (sigmoid)": lambda: task("sigmoid", 3, FLOATS),
        # What is no classifier
        "(None, 5, 8)": lambda: outputs_of(FAMILIES["ViT"](include_top=False)),
        "'pool'": lambda: outputs_of(FAMILIES["ViT"](include_top=False, pooling="avg")),
        "Square": lambda: outputs_of(ends_in(keras.ops.square)),
        "one output": lambda: outputs_of(two_outputs()),
        "built": lambda: outputs_of(keras.Sequential([keras.layers.Dense(3)])),
        # Recipes
        "'learning_rate' ... Received: 'learning_rat'": lambda: MINE.replace(learning_rat=1e-3),
        "'finetune' ... Received: 'finetun'": lambda: training.recipes.get("finetun"),
        "`drop_path`": lambda: training.apply_settings(small(), Recipe("mine", drop_path=0.1)),
        "`remat`": lambda: training.apply_settings(small(), Recipe("mine", remat=True)),
        "'float64'": lambda: training.set_precision(small(), "float64"),
        "`accumulate_steps` must divide batch_size=64": lambda: MINE.replace(accumulate_steps=3),
        "`amsgrad` must be False. ... True": lambda: training.AdamW(amsgrad=True),
        "`rate_factors` must have one factor per ... 2": lambda: training.AdamW(
            rate_factors=(1.0, 0.5, 0.5)
        ).build(small().trainable_variables),
        "divisible by the 4 devices ...Received: 6": lambda: rows_of(
            (np.zeros(6), np.zeros(6)), Devices(4, 4, 4, 0)
        ),
        # Losses and their targets
        "'head'": lambda: PerHead({"head_dist": SmoothedCrossentropy()}),
        # Teachers
        "`teacher` must be of type `Model`. Received: 'RegNetY'": lambda: Distillation("RegNetY"),
        "`teacher` must be a model": lambda: distil(distillation="hard"),
        "`kind` ... Received: 'medium'": lambda: Distillation(teacher_of(), "medium"),
        "student...as_chain": lambda: Distillation(teacher_of()).loss(teacher_of()),
        "(batch, 4), for the student's classes. Received: (3, 5)": lambda: batches_of(classes=5),
        "(2, 4). Received: (8, 8)": lambda: batches_of(size=(8, 8)),
        "`teacher.preprocessing` must be": lambda: batches_of(preprocessing=None),
        "`teacher` must return logits or a softmax": lambda: batches_of(activation="sigmoid"),
        "`student` must be ...one classifier": lambda: batches_of("patches"),
        "one output (batch, 4)...(2, 3, 4)": lambda: next(
            iter(Distillation(two_outputs()).batches(teachers.Given(), student_of()))
        ),
        "functional": lambda: batches_of(subclassed=True),
        "Received: (3, 5)": lambda: batches_of(kind="hard", subclassed=True, classes=5),
    }
}
