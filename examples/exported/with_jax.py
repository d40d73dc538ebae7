"""The top classes of a photograph, by a StableHLO file and JAX alone.

    keras-vitx export CaiT_Mini model.stablehlo --weights cifar10 --preprocessing
    python examples/exported/with_jax.py model.stablehlo cat.jpg

The file normalizes the pixels, and takes them in one size, to which the photograph is cropped.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from PIL import Image, ImageOps

file, photograph = sys.argv[1:]
record = json.loads(Path(f"{file}.json").read_text())
_, height, width, _ = record["inputs"]["images"]["shape"]
image = ImageOps.exif_transpose(Image.open(photograph)).convert("RGB")
pixels = np.asarray(ImageOps.fit(image, (width, height)))
exported = jax.export.deserialize(bytearray(Path(file).read_bytes()))
probabilities = np.asarray(exported.call(pixels[None])["probabilities"])[0]
for index in probabilities.argsort()[:-4:-1]:
    print(f"{record['classes'][index]:20} {probabilities[index]:6.1%}")
