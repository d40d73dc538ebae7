"""Run an example on a few images in place of the whole sample.

python tests/examples_runner.py EXAMPLE [ARGUMENTS ...]
"""

import dataclasses
import runpy
import sys

import numpy as np

import keras_vitx as kv
from keras_vitx.data import sources

SIZES = {"train": 64, "validation": 20, "test": 20}


def few_images(*arguments):
    """The first images of each split of the sample."""
    whole = opened(*arguments)
    parts = {name: getattr(whole, name) for name in SIZES}
    few = {
        name: split and split.take(np.arange(min(SIZES[name], split.size)))
        for name, split in parts.items()
    }
    return dataclasses.replace(whole, **few)


opened = sources.load_fashion_mnist


def run(path, *arguments):
    """Run the file as a program, and return its names."""
    before = sys.argv, sources.load_fashion_mnist
    sys.argv, sources.load_fashion_mnist = [str(path), *arguments], few_images
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sources.load_fashion_mnist = before


if __name__ == "__main__":
    assert kv.data.load_dataset is not None
    run(*sys.argv[1:])
