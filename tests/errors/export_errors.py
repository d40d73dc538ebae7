"""Export: arguments and models that are refused before anything is written."""

from functools import partial

import keras
import numpy as np
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.export import FORMATS

BACKEND_FREE = True
IMAGES, OTHER, ANY = (keras.Input((8, 8, channels)) for channels in (3, 3, None))
MAPS, FLAT = keras.layers.Conv2D(2, 1)(IMAGES), keras.layers.Flatten()(IMAGES)
OF_IMAGES = "`model` must be a built Keras model of images"
CANT_WRITE = ("int4", "onnx"), ("int8", "openvino"), ("int8", "litert"), ("float8", "litert")


def export(model=None, path=None, **options):
    """Return an export of a classifier, or of what a function returns, to a path of the format."""
    format = FORMATS.get(options.get("format"))
    path = path or f"m{format.suffix if format else ''}"
    return lambda classifier, empty: kv.export(
        classifier if model is None else model(), empty / path, verbose=False, **options
    )


def pixels(value):
    return export(preprocessing=True, images=np.full((2, 16, 16, 3), value))


def of_shape(*shape):
    return export(images=np.zeros(shape))


def headless():
    return FAMILIES["ViT"](include_top=False, pooling="avg")


def named(names):
    model = FAMILIES["ViT"](classes=5)
    model.class_names = tuple(names)
    return model


def with_outputs(outputs, inputs=IMAGES):
    return lambda: keras.Model(inputs, outputs)


def quantized(mode="int8"):
    model = kv.ViT(40, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)
    model.quantize(mode)
    return model


def written(path):
    path.write_bytes(b"PK")
    return path


ONE_LINEAR = with_outputs(keras.layers.Dense(1)(FLAT))
TWO_INPUTS = with_outputs(MAPS, [IMAGES, OTHER])
ANY_CHANNELS = with_outputs(keras.layers.Rescaling(2.0)(ANY), ANY)
# The name of the input of a file.
NAMED_IMAGES = with_outputs({"images": MAPS, "b": IMAGES})
ERRORS = {
    ValueError: {
        "`format` must ... 'tflite'...litert ... .tflite ... tensorflow": export(format="tflite"),
        "`path` must end in .onnx": export(path="m.tflite", format="onnx"),
        "`path` must not end in another's suffix": export(path="m.onnx", format="saved_model"),
        **{
            f"`path` must end in one of .onnx, ... without a suffix ...{path}'": export(path=path)
            for path in ("m.keras", "m.h5", "m.pt", "m.engine", "m.ONNX2")
        },
        "`path` must be the name of a file": export(path="/"),
        "`preprocessing` must be True, False": export(preprocessing=224),
        "`outputs` must be None or ... 'classes'": export(outputs="classes"),
        "`outputs` must be None or 'logits'": export(ONE_LINEAR, outputs="probabilities"),
        "`precision` must be ... ('saved_model', 'int8')": export(precision="int8"),
        "`precision` must be ... 'bfloat16'": export(format="litert", precision="bfloat16"),
        "`compute_dtype` must be None, or": export(format="openvino", compute_dtype="float16"),
        "`image_sizes` must be ... [8]": export(image_sizes=[8]),
        "`image_sizes` must be ... [(8, 8)]": export(format="torch", image_sizes=[(8, 8)]),
        "`images` must be (2 or more, 16, 16, 3). Received: (16, 16, 3)": of_shape(16, 16, 3),
        "`images` must be (2 or more, ... Received: (1, 16, 16, 3)": of_shape(1, 16, 16, 3),
        "`images` must be (2 or more, ... Received: (2, 16, 8, 3)": of_shape(2, 16, 8, 3),
        "`images` must be of uint8, ... Received: 'float64'": pixels(0.5),
        "`images` must be of uint8, ... Received: 'int64'": pixels(-1),
        "`images` must be of uint8, which the model takes": pixels(256),
        "`data_format` must be": export(data_format="NCHW"),
        "`serving` must be True, False, or the number ... 0": export(serving=0),
        "`serving` must be True, False, or the number ... 'all'": export(serving="all"),
        "`serving` must be False but for ...'saved_model'": export(serving=3, format="onnx"),
        "`serving` must be False but for ...'probabilities'": export(serving=1, outputs="logits"),
        "`model` must end in a classifier for outputs": export(headless, serving=3),
        "`model` must end in a classifier for outputs='logits'": export(headless, outputs="logits"),
        "`imports` must be module names": export(imports="my_module"),
        "`tolerance` must be ... nan": export(tolerance=float("nan")),
        "`tolerance` must be ... 'small'": export(tolerance="small"),
        "`opset` must be None, ... ('saved_model', 20)": export(opset=20),
        "`opset` must be None, or one of (17, 18,": export(format="onnx", opset=16),
        f"{OF_IMAGES}, ... 'CaiT_Mini'": export(lambda: "CaiT_Mini"),
        f"{OF_IMAGES}, ...<Sequential": export(lambda: keras.Sequential([keras.layers.Dense(2)])),
        f"{OF_IMAGES}, ... [(None, 8, 8, 3), (None, 8, 8, 3)]": export(TWO_INPUTS),
        f"{OF_IMAGES}, ... [(None, 8, 8, None)]": export(ANY_CHANNELS),
        "`model` must not have an output ... onnx": export(NAMED_IMAGES, format="onnx"),
        "`model` must not have an output ... openvino": export(NAMED_IMAGES, format="openvino"),
        **{
            f"must not be quantized to {mode} for the format {format!r}": export(
                partial(quantized, mode), format=format
            )
            for mode, format in CANT_WRITE
        },
        "must be a file that you trust to be opened: a SavedModel": lambda classifier, tmp_path: (
            kv.export.verify(written(tmp_path / "saved_model.pb").parent, classifier)
        ),
        "m.pt2' must be a file that you trust to be opened": lambda tmp_path: kv.predictor(
            written(tmp_path / "m.pt2")
        ),
        "`batch_sizes` must be positive": lambda classifier: kv.predictor(
            classifier, batch_sizes=()
        ),
        "`model` must end in a classifier": lambda: kv.predictor(headless()),
        "`model.class_names` must have a name for each of 5 classes. Received: ('a', 'b')": (
            lambda: kv.predictor(named("ab"))
        ),
        "`model` must be a model of keras_vitx": lambda: kv.fuse(keras.Model(IMAGES, FLAT)),
        "`model` must not have quantized layers": lambda: kv.fuse(quantized()),
    },
    FileExistsError: {
        "overwrite=True replaces it": lambda classifier, tmp_path: kv.export(
            classifier, written(tmp_path / "m.pt2")
        ),
    },
    FileNotFoundError: {
        "is not a SavedModel": lambda classifier, empty: kv.export.verify(empty, classifier),
        "is not ONNX data, an exported file": lambda empty: kv.predictor(empty / "model.onnx"),
    },
}
