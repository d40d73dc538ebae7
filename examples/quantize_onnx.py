"""Quantize an exported ONNX file to int8 with ONNX Runtime, and compare before and after.

    python examples/quantize_onnx.py [SOURCE]

Dynamic: the ranges of activations are measured for each image. Static: they are fixed, here on
photographs. `reduce_range` gives weights seven bits: x86 without VNNI adds pairs of int8 products
in 16 bits, which eight bits overflow. With labeled test images, such as cifar10.npz, the accuracy
is measured; without a SOURCE, the agreement with float32 on windows of scikit-image's photographs.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import quantization
from PIL import Image

import keras_vitx as kv

CALIBRATION, TEST = 128, 1000
PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
OPTIONS = {"per_channel": True, "reduce_range": True, "op_types_to_quantize": ["MatMul", "Gemm"]}


def windows(count, seed):
    """Return square windows of photographs, a quarter to the whole of their shorter side."""
    directory, random = (
        Path(find_spec("skimage").origin).parent / "data",
        np.random.default_rng(seed),
    )
    photographs, found = [Image.open(directory / name).convert("RGB") for name in PHOTOGRAPHS], []
    for index in range(count):
        photograph = photographs[index % len(photographs)]
        side = int(min(photograph.size) * random.uniform(0.25, 1))
        left, top = (random.integers(whole - side + 1) for whole in photograph.size)
        found.append(photograph.crop((left, top, left + side, top + side)))
    return found


class Calibration(quantization.CalibrationDataReader):
    """One image at a time, as ONNX Runtime asks for them."""

    def __init__(self, images):
        self.feeds = ({"images": image[None]} for image in images)

    def get_next(self):
        return next(self.feeds, None)


def classes_of(file):
    """Return the most probable class of each test image."""
    (probabilities,) = onnxruntime.InferenceSession(file).run(None, {"images": test})
    return probabilities.argmax(axis=-1)


model = kv.ConViT_Mini(weights="cifar10")
kv.export(model, "float32.onnx", overwrite=True)
if len(sys.argv) > 1:
    source = kv.data.load_dataset(sys.argv[1])
    calibration, test, labels = source.train.images, source.test.images, source.test.labels[:TEST]
else:
    calibration, test, labels = windows(CALIBRATION, 0), windows(TEST, 1), None
calibration, test = (
    kv.preprocess_input([images[index] for index in range(min(count, len(images)))], model)
    for images, count in ((calibration, CALIBRATION), (test, TEST))
)
quantization.quantize_dynamic("float32.onnx", "dynamic.onnx", **OPTIONS)
quantization.quantize_static("float32.onnx", "static.onnx", Calibration(calibration), **OPTIONS)
expected = classes_of("float32.onnx") if labels is None else labels
measure = "agreement with float32" if labels is None else "accuracy"
for name in ("float32", "dynamic", "static"):
    path = Path(f"{name}.onnx")
    correct = np.mean(classes_of(path) == expected)
    print(f"{name:8} {path.stat().st_size / 1e6:5.2f} MB  {measure} {correct:6.1%}")
