"""Run an example, or a page's block, on a few images in place of the whole sample."""

import dataclasses
import pathlib
import runpy
import sys
import tempfile

import numpy as np
import pytest

from keras_vitx.data import sources

SIZES = {"train": 64, "validation": 20, "test": 20}
COMPARED = ("--networks", "ViT_Mini", "CaiT_Mini", "--seeds", "2", "--epochs", "1")
ARGUMENTS = {"compare": COMPARED}
"""Words of the command line, where an example takes what makes it short."""
SMALLER = {
    # name of an example or a page: what it says, and what runs in place of it
    "quantize_onnx": ("CALIBRATION, TEST = 128, 1000", "CALIBRATION, TEST = 8, 32"),
    "find_learning_rate": ("np.geomspace(1e-6, 1.0, 60)", "np.geomspace(1e-6, 1.0, 12)"),
    "distil": ("EPOCHS = 5", "EPOCHS = 1"),
    "export": ('kv.CaiT_Mini(weights="cifar10")', "kv.CaiT_Mini(depth=1)"),
    "fine-tune": ('"epochs": 3', '"epochs": 1'),
    "your-attention": ('"epochs": 3', '"epochs": 1'),
}
"""Nothing else of an example or a page is changed."""


def text_of(path):
    """The text of an example or a page, smaller where `SMALLER` says so."""
    text = path.read_text()
    if path.stem in SMALLER:
        assert SMALLER[path.stem][0] in text, path
        text = text.replace(*SMALLER[path.stem])
    return text


def few_images(path, name):
    """The first images of each split of the sample; other files whole."""
    whole = load_npz(path, name)
    if name != "fashion_mnist":
        return whole
    few = {}
    for name, count in SIZES.items():
        split = getattr(whole, name)
        few[name] = split and split.take(np.arange(min(count, len(split))))
    return dataclasses.replace(whole, **few)


load_npz = sources.load_npz


def run(path, *arguments):
    """Run the file as a program."""
    words = [str(path), *(arguments or ARGUMENTS.get(path.stem, ()))]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "path", [str(path.parent), *sys.path])  # As Python does.
        patch.setattr(sources, "load_npz", few_images)
        copy = pathlib.Path(directory, path.name)
        copy.write_text(text_of(path))
        runpy.run_path(str(copy), run_name="__main__")
