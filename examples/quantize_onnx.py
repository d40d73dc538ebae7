"""Quantize an exported ONNX file to int8 with ONNX Runtime, and compare before and after.

    python examples/quantize_onnx.py [SOURCE [SIZE]]

Dynamic: ranges of activations are measured for each batch, whose images change each other's
outputs. Static: they are fixed, here on photographs. `reduce_range` gives weights seven bits: x86
without VNNI adds pairs of int8 products in 16 bits, which eight bits overflow. With a SOURCE, such
as cifar10.npz, accuracy is measured; else agreement with float32 on scikit-image's photographs.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import keras_vitx as kv

import numpy as np
import onnxruntime
from onnxruntime import quantization
from PIL import Image

CALIBRATION, TEST = 128, 1000
PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
OPTIONS = {"per_channel": True, "reduce_range": True, "op_types_to_quantize": ["MatMul", "Gemm"]}


def windows(count, seed):
    """Return square windows of photographs, a quarter to the whole of their shorter side."""
    directory = Path(find_spec("skimage").origin).parent / "data"
    random = np.random.default_rng(seed)
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


def quantize(file, calibration):
    """Write a file with dynamic ranges, and one with ranges fixed on images, beside `file`."""
    dynamic, static = (file.with_name(f"{file.stem}_{kind}.onnx") for kind in ("dynamic", "static"))
    quantization.quantize_dynamic(file, dynamic, **OPTIONS)
    quantization.quantize_static(file, static, Calibration(calibration), **OPTIONS)
    return dynamic, static


def classes_of(file, images):
    """Return the most probable class of each image, one at a time, as a server does."""
    session = onnxruntime.InferenceSession(file)
    return np.array([session.run(None, {"images": image[None]})[0].argmax() for image in images])


if __name__ == "__main__":
    size = sys.argv[2] if len(sys.argv) > 2 else "ConViT_Mini"
    model, file = kv.create_model(size, weights="cifar10"), Path("float32.onnx")
    kv.export(model, file, overwrite=True)
    if len(sys.argv) > 1:
        source = kv.data.load_dataset(sys.argv[1])
        calibration, test = source.train.images[:CALIBRATION], source.test.images[:TEST]
        expected, measure = source.test.labels[:TEST], "accuracy"
    else:
        calibration, test = windows(CALIBRATION, 0), windows(TEST, 1)
        expected, measure = None, "agreement with float32"
    calibration, test = (kv.preprocess_input([*each], model) for each in (calibration, test))
    for path in (file, *quantize(file, calibration)):
        found = classes_of(path, test)
        expected = found if expected is None else expected
        size, correct = path.stat().st_size / 1e6, np.mean(found == expected)
        print(f"{path.stem:16} {size:5.2f} MB  {measure} {correct:6.1%}")
