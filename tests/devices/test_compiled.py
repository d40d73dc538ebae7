"""The compilers of PyTorch and TensorFlow take the layers of every family, also in training."""

import functools

import keras
import numpy as np
import pytest
from devices.zoo import SHALLOW, TINY
from harness import BACKEND, array, precision

IMAGES = np.random.default_rng(0).standard_normal((2, 32, 32, 3), "float32")
# Of the largest output, and of the loss after two steps. XLA rounds half precision elsewhere.
BOUNDS = {"float32": 1e-5, "mixed_bfloat16": 0.05, "mixed_float16": 0.01}


# The other families have the operations of these. Training has what inference compiles.
@pytest.mark.skipif(BACKEND != "torch", reason="compiled by PyTorch")
@pytest.mark.parametrize(
    ("family", "training"),
    [("CaiT", True), ("ConViT", True), ("DeepViT", True), ("RefinedViT", True), ("DeepViT", False)],
)
def test_torch_compiles_one_graph_for_any_number_of_images(family, training):
    import torch
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model = TINY[family](**SHALLOW[family])
    model(torch.zeros(1, *model.input_shape[1:]))  # Makes Keras's global state.
    compiled = torch.compile(lambda x: model(x, training=training), fullgraph=True, backend="eager")
    for images in (2, 3, 5):
        x = torch.randn(images, *model.input_shape[1:])
        torch._dynamo.mark_dynamic(x, 0)
        if training:
            compiled(x).sum().backward()
            assert all(v.value.grad is not None for v in model.trainable_variables)
        else:
            with torch.no_grad():
                np.testing.assert_allclose(array(compiled(x)), array(model(x)), 1e-4, 1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def outputs_and_losses(family, policy, jit_compile):
    """Return the outputs, and the losses of two steps of training."""
    keras.utils.set_random_seed(0)
    with precision(policy):
        model = TINY[family](**SHALLOW[family], drop_path=0.0)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=jit_compile)
    outputs = model.predict(IMAGES, verbose=0)
    return outputs, [float(model.train_on_batch(IMAGES, np.array([3, 7]))) for _ in range(2)]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="compiled by TensorFlow")
@pytest.mark.parametrize(
    ("family", "policy"),
    [
        *(("ConViT", "float32"), ("RefinedViT", "float32")),
        *(("DeepViT", "mixed_bfloat16"), ("CaiT", "mixed_float16")),
    ],
)
def test_tensorflow_by_xla_is_as_without(family, policy):
    found, wanted = (
        outputs_and_losses(family, policy, jit_compile) for jit_compile in (True, False)
    )
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=BOUNDS[policy] * np.max(theirs))


@pytest.mark.skipif(BACKEND != "torch", reason="compiled by PyTorch")
def test_torch_compiles_each_kind_of_block(monkeypatch):
    import torch
    from torch._dynamo.utils import counters

    from keras_vitx.layers.kernels import torch as kernels

    compiler = functools.partial(torch.compile, fullgraph=True, backend="eager")
    monkeypatch.setattr(kernels, "_compiled", functools.cache(compiler))
    found, wanted = (outputs_and_losses("ConViT", "float32", jit) for jit in (True, False))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.max(theirs))
    # A local block without stochastic depth, one with it, and the others; re-attention in float32.
    for family, graphs in (("ConViT", 3), ("DeepViT", 2)):
        torch.compiler.reset()
        counters.clear()
        # In half precision, Keras must not run the blocks to learn their shapes: each were a graph.
        model = TINY[family](depth=4, drop_path=0.5, dtype="mixed_bfloat16")
        rates = [block.drop_path for block in model.blocks]
        assert len(set(rates)) == 4
        model.compile(
            keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", jit_compile=True
        )
        losses = {model.train_on_batch(IMAGES, np.array([3, 7])) for _ in range(4)}
        assert len(losses) > 1  # Other images lose other branches in each step.
        assert counters["stats"]["unique_graphs"] == graphs
        assert [block.drop_path for block in model.blocks] == rates
