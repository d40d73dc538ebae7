"""The top classes of a photograph, by an OpenVINO model and OpenVINO alone.

    keras-vitx export CaiT_Mini model.xml --weights cifar10 --preprocessing
    python examples/exported/with_openvino.py model.xml cat.jpg

The file normalizes the pixels, and takes them in one size, to which the photograph is cropped.
"""

import json
import sys
from pathlib import Path

import numpy as np
import openvino
from PIL import Image, ImageOps

file, photograph = sys.argv[1:]
record = json.loads(Path(f"{file}.json").read_text())
_, height, width, _ = record["inputs"]["images"]["shape"]
image = ImageOps.exif_transpose(Image.open(photograph)).convert("RGB")
pixels = np.asarray(ImageOps.fit(image, (width, height)))
# Some CPUs would choose bfloat16 by themselves, which is faster and less exact.
model = openvino.compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
probabilities = model(pixels[None])["probabilities"][0]
for index in probabilities.argsort()[:-4:-1]:
    print(f"{record['classes'][index]:20} {probabilities[index]:6.1%}")
