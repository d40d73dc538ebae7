"""ImageNet-ReaL (Beyer et al., 2020): a prediction is right if it is any of an image's labels.

    python examples/real_labels.py ViT_S val real.json

`val` holds ImageNet's validation images, ILSVRC2012_val_00000001.JPEG, ..., with or without a
sub-directory per class; `real.json` is the published list of the labels of each image, in the
order of their numbers. Images without a label are left out, as in the paper.
"""

import json
import sys
from pathlib import Path

import keras_vitx as kv

import numpy as np


def real_accuracy(model, directory, labels):
    """Return the fraction of the images whose prediction is one of their labels."""
    listed = json.loads(Path(labels).read_text())
    files = sorted(Path(directory).rglob("ILSVRC2012_val_*"))
    known = {file: listed[int(file.stem[-8:]) - 1] for file in files}
    known = {file: found for file, found in known.items() if found}
    # `evaluate` needs one label per image; the predictions are compared with all of them.
    source = kv.data.from_files([*known], [found[0] for found in known.values()])
    best = kv.evaluate(model, source, predictions=True)["probabilities"].argmax(-1)
    return np.mean([label in found for label, found in zip(best, known.values(), strict=True)])


if __name__ == "__main__":
    name, *paths = sys.argv[1:]
    model = kv.create_model(name, weights="imagenet")
    print(f"ReaL accuracy of {name}: {real_accuracy(model, *paths):.2%}")
