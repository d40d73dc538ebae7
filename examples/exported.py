"""The top classes of a photograph, by an exported file and its own runtime, without Keras.

    keras-vitx export CaiT_Mini model.onnx --weights cifar10 --preprocessing
    python examples/exported.py model.onnx cat.jpg

Also for .xml, .tflite, .pt2, .stablehlo and the directory of a SavedModel. The file normalizes the
pixels; if it takes them in one size, the photograph is cropped to it. Only open .pt2, .stablehlo
and SavedModels of your own: they can do more than compute.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

path, photograph = map(Path, sys.argv[1:])
record = path / "export.json" if path.is_dir() else path.with_name(f"{path.name}.json")
record = json.loads(record.read_text())
_, height, width, _ = record["inputs"]["images"]["shape"]
image = ImageOps.exif_transpose(Image.open(photograph, formats=("JPEG", "PNG"))).convert("RGB")
pixels = np.asarray(image if height is None else ImageOps.fit(image, (width, height)))[None]

if path.suffix == ".onnx":
    import onnxruntime

    (outputs,) = onnxruntime.InferenceSession(path).run(["probabilities"], {"images": pixels})
elif path.suffix == ".xml":
    import openvino

    # Some CPUs would choose bfloat16 by themselves, which is faster and less exact.
    model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    outputs = model(pixels)["probabilities"]
elif path.suffix == ".tflite":
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(str(path)).get_signature_runner("serving_default")
    outputs = run(images=pixels)["probabilities"]
elif path.suffix == ".pt2":
    import torch

    with torch.no_grad():
        outputs = torch.export.load(path).module()(torch.tensor(pixels))["probabilities"].numpy()
elif path.suffix == ".stablehlo":
    import jax

    outputs = jax.export.deserialize(bytearray(path.read_bytes())).call(pixels)["probabilities"]
else:
    import tensorflow as tf

    serve = tf.saved_model.load(str(path)).signatures["serve"]
    outputs = serve(images=tf.constant(pixels))["probabilities"].numpy()

probabilities = np.asarray(outputs)[0]
for index in probabilities.argsort()[:-4:-1]:
    print(f"{record['classes'][index]:20} {probabilities[index]:6.1%}")
