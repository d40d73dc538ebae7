"""The top classes of a photograph, by a LiteRT file and its interpreter alone.

    keras-vitx export CaiT_Mini model.tflite --weights cifar10 --preprocessing
    python examples/exported/with_litert.py model.tflite cat.jpg

The file normalizes the pixels, and takes them in one size, to which the photograph is cropped.
"""

import json
import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image, ImageOps

file, photograph = sys.argv[1:]
record = json.loads(Path(f"{file}.json").read_text())
_, height, width, _ = record["inputs"]["images"]["shape"]
image = ImageOps.exif_transpose(Image.open(photograph)).convert("RGB")
pixels = np.asarray(ImageOps.fit(image, (width, height)))
run = Interpreter(file).get_signature_runner("serving_default")
probabilities = run(images=pixels[None])["probabilities"][0]
for index in probabilities.argsort()[:-4:-1]:
    print(f"{record['classes'][index]:20} {probabilities[index]:6.1%}")
