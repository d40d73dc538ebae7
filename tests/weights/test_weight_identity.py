"""Files of another family, size or head: errors name the file's model."""

import re

import numpy as np
import pytest
from harness import FAMILIES, array
from safetensors.numpy import save_file

import keras_vitx as kv
from keras_vitx.weights import to_checkpoint
from keras_vitx.weights.names import TABLES, Identity, identify

pytestmark = pytest.mark.backend_free


def shapes_of(model, native):
    if native:
        return {variable.path: tuple(variable.shape) for variable in model.weights}
    return {name: array.shape for name, array in to_checkpoint(model).items()}


@pytest.fixture
def file_of(tmp_path):
    """Write a model's weights under the public names, and nothing about the model."""

    def write(model, **more):
        path = tmp_path / "unnamed.safetensors"
        save_file(to_checkpoint(model) | more, path)
        return path

    return write


@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_told_apart(family, native):
    model = FAMILIES[family]()
    # Families without a mark, such as CBViT, have the variables of a ViT.
    looks = family if getattr(TABLES.get(family), "mark", None) else "ViT"
    depth = sum(bool(re.search(r"blocks_\d+$", step.name)) for step in model.steps)
    (dim,) = model.get_layer("norm").gamma.shape
    assert identify(shapes_of(model, native)) == Identity(looks, depth, dim)


def test_what_is_no_network_of_the_zoo():
    assert identify({"layer1.conv.weight": (3, 3)}) is None
    assert identify({"cls_token": (1, 1, 8), "norm.weight": (8,)}) is None


def test_a_size_is_named(file_of):
    path = file_of(kv.ViT_Ti())
    with pytest.raises(ValueError, match=r"model 'ViT_S'\. It looks like ViT_Ti\."):
        kv.ViT_S(weights=path)
    with pytest.raises(ValueError, match=r"It looks like ViT_Ti\."):
        kv.CaiT_XXS24(weights=path)


def test_the_argument_for_a_head_is_said(file_of):
    for family, argument in (("ViT", "distillation_token"), ("RefinedViT", "dense_head")):
        for given in (True, False):
            path = file_of(FAMILIES[family](**{argument: given}))
            with pytest.raises(ValueError, match=f"Build the model with {argument}={given}"):
                FAMILIES[family](weights=path, **{argument: not given})


def test_buffers_that_no_model_needs_are_left(file_of):
    buffers = {
        "blocks.0.attn.reatten_norm.num_batches_tracked": np.array(3),
        "blocks.0.attn.rel_indices": np.zeros((1, 4, 4, 3), "float32"),
    }
    make = FAMILIES["DeepViT"]
    model = make()
    loaded = make(weights=file_of(model, **buffers))
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(array(one.value), array(other.value))
    with pytest.raises(ValueError, match="rel_table"):
        make(weights=file_of(model, rel_table=np.zeros(3, "float32")))
