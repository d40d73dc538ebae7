"""The exporters of PyTorch and JAX, with a symbolic batch size."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close

from keras_vitx.layers import ImagePreprocessing

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 20, 14, 3)).astype("float32")
families = pytest.mark.parametrize("family", ["RefinedViT", "ConViT"])


@pytest.fixture
def model(family):
    """A model that includes its preprocessing."""
    images = keras.Input((20, 14, 3))
    ready = ImagePreprocessing((16, 16), [0.5] * 3, [0.5] * 3, crop_ratio=0.9)(images)
    return keras.Model(images, FAMILIES[family]()(ready))


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's")
@pytest.mark.filterwarnings("ignore")
@families
def test_torch_jit_trace_and_export(model):
    import torch

    model.eval()
    two, images = torch.tensor(IMAGES[:2]), torch.tensor(IMAGES)
    expected = array(model(images))
    with torch.no_grad():
        traced = torch.jit.trace(model, two, check_trace=False)
        shapes = [({0: torch.export.Dim("batch", min=1)},)]
        exported = torch.export.export(model, (two,), dynamic_shapes=shapes, strict=False).module()
        for run in (traced, exported):
            close(array(run(images)), expected)
            close(array(run(images[:1])), expected[:1])


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's")
@families
def test_jax_export(model):
    import jax

    (batch,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, *IMAGES.shape[1:]), "float32")
    exported = jax.export.export(jax.jit(lambda x: model(x, training=False)))(spec)
    expected = array(model(IMAGES))
    close(array(exported.call(IMAGES)), expected)
    close(array(exported.call(IMAGES[:1])), expected[:1])
