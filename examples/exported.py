"""The top classes of a photograph, by an exported file and its own runtime, without Keras.

    keras-vitx export CaiT_Mini model.onnx --weights cifar10 --preprocessing
    python examples/exported.py model.onnx cat.jpg

Also for .pt2 and the directory of a SavedModel. The file normalizes the pixels; a .pt2 takes them
in one size, to which the photograph is cropped. `classes.txt` beside the file may have the names of
the classes, one a line. Only open .pt2 and SavedModels of your own: they can do more than compute.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

path, photograph = map(Path, sys.argv[1:])
image = ImageOps.exif_transpose(Image.open(photograph, formats=("JPEG", "PNG"))).convert("RGB")

if path.suffix == ".onnx":
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (outputs,) = session.run(["probabilities"], {"images": np.asarray(image)[None]})
elif path.suffix == ".pt2":
    import torch

    program = torch.export.load(path)
    (size,) = (node.meta["val"].shape for node in program.graph.nodes if node.name == "images")
    pixels = np.asarray(ImageOps.fit(image, (size[2], size[1])))[None]
    with torch.no_grad():
        outputs = program.module()(torch.tensor(pixels))["probabilities"].numpy()
else:
    import tensorflow as tf

    serve = tf.saved_model.load(str(path)).signatures["serve"]
    outputs = serve(images=tf.constant(np.asarray(image)[None]))["probabilities"].numpy()

names = path.with_name("classes.txt")
names = names.read_text().splitlines() if names.exists() else range(outputs.shape[1])
for index in outputs[0].argsort()[:-4:-1]:
    print(f"{names[index]:20} {outputs[0, index]:6.1%}")
