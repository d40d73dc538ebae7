"""The top classes of a photograph, by a program of torch.export and PyTorch alone.

    keras-vitx export CaiT_Mini model.pt2 --weights cifar10 --preprocessing
    python examples/exported/with_torch.py model.pt2 cat.jpg

The file normalizes the pixels, and takes them in one size, to which the photograph is cropped.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

file, photograph = sys.argv[1:]
record = json.loads(Path(f"{file}.json").read_text())
_, height, width, _ = record["inputs"]["images"]["shape"]
image = ImageOps.exif_transpose(Image.open(photograph)).convert("RGB")
pixels = np.asarray(ImageOps.fit(image, (width, height)))
model = torch.export.load(file).module()
with torch.no_grad():
    probabilities = model(torch.tensor(pixels[None]))["probabilities"][0].numpy()
for index in probabilities.argsort()[:-4:-1]:
    print(f"{record['classes'][index]:20} {probabilities[index]:6.1%}")
