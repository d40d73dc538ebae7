"""Export: arguments and models that are refused before anything is written."""

import keras
from harness import FAMILIES

import keras_vitx as kv

BACKEND_FREE = True
IMAGES = keras.Input((8, 8, 3))
FLAT = keras.layers.Flatten()(IMAGES)


def export(path="m", model=None, **options):
    """Return an export of a classifier, or of what a function returns."""
    return lambda classifier, empty: kv.export(
        classifier if model is None else model(), empty / path, **options
    )


def headless():
    return FAMILIES["ViT"](include_top=False, pooling="avg")


def named(names):
    model = FAMILIES["ViT"](classes=5)
    model.class_names = tuple(names)
    return model


def quantized():
    model = kv.ViT(40, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)
    model.quantize("int8")
    return model


def one_linear():
    model = keras.Model(IMAGES, keras.layers.Dense(1)(FLAT))
    model.preprocessing = kv.Preprocessing.pixels(3)
    return model


ERRORS = {
    ValueError: {
        "`format` must be one of ...m.tflite": export("m.tflite"),
        "`outputs` must be None, or ... 'classes'": export(outputs="classes"),
        "`outputs` must be None, or 'logits'": export(model=headless, outputs="logits"),
        "`model` must end in a classifier": lambda: kv.predictor(headless()),
        "`model` must end in a sigmoid, or several": lambda: kv.predictor(one_linear()),
        "`model.class_names` must have a name for each of 5 classes. Received: ('a', 'b')": (
            lambda: kv.predictor(named("ab"))
        ),
        "`model` must be a `Chain`": lambda: kv.fuse(keras.Model(IMAGES, FLAT)),
        "without quantized layers": lambda: kv.fuse(quantized()),
    },
}
