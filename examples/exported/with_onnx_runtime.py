"""The top classes of a photograph, by an ONNX file and ONNX Runtime alone.

keras-vitx export CaiT_Mini model.onnx --weights cifar10 --preprocessing
python examples/exported/with_onnx_runtime.py model.onnx cat.jpg
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

file, photograph = sys.argv[1:]
classes = json.loads(Path(f"{file}.json").read_text())["classes"]
session = onnxruntime.InferenceSession(file)
pixels = np.asarray(ImageOps.exif_transpose(Image.open(photograph)).convert("RGB"))
probabilities = session.run(["probabilities"], {"images": pixels[None]})[0][0]
for index in probabilities.argsort()[:-4:-1]:
    print(f"{classes[index]:20} {probabilities[index]:6.1%}")
