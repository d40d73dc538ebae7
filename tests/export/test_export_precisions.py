"""Exports in lower precisions, from the backend of this run, opened in their own runtimes."""

import numpy as np
import pytest
from harness import BACKEND, randomize

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS

OWN = {"tensorflow": "saved_model", "jax": "stablehlo", "torch": "torch"}[BACKEND]
WRITTEN_HERE = [OWN, "onnx"] if BACKEND == "torch" else [OWN]


@pytest.mark.parametrize("name", WRITTEN_HERE)
def test_bfloat16(name, tmp_path):
    # Its products hold nearly all of its weights: 1.8 MB in float32.
    model = kv.ViT(192, 1, 3, patch_size=8, input_shape=(16, 16, 3), classes=5)
    randomize(model)
    path = tmp_path / f"model{FORMATS[name].suffix}"
    exported = kv.export(model, path, name, precision="bfloat16", verbose=False)
    floats = 4 * sum(np.prod(weight.shape) for weight in model.weights)
    # A graph is in the file as well.
    assert exported.size < 0.75 * floats
    assert 0 < exported.difference < 0.05 and exported.top1 is not None
