"""PyTorch hooks on child layers: a layer with hooks is called, even on fast paths."""

import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, call, close, numbers, randomize

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    CarryingBlock,
    ConvStem,
    LayerScale,
    PatchEmbedding,
    ReAttention,
    Refinement,
    ResidualRefinement,
    SharedAttention,
    TalkingHeadsAttention,
)

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's hooks")
if BACKEND == "torch":
    import torch

TOKENS, MAPS, IMAGES = (2, 5, 8), (2, 2, 5, 5), (2, 8, 8, 3)
# A layer, the shape of its input, and its children that compute at inference.
PARENTS = {
    "Block": (
        lambda: Block(TalkingHeadsAttention(2), MLP(), layer_scale=0.5, drop_path=0.5),
        TOKENS,
        "norm1 norm2 attn mlp ls1 ls2 qkv proj proj_l proj_w fc1 fc2",
    ),
    "MLP": (
        lambda: MLP(on_output=[LayerScale(name="scale")], dropout=0.5),
        TOKENS,
        "fc1 fc2 scale",
    ),
    "Attention": (lambda: Attention(2, dropout=0.5, proj_dropout=0.5), TOKENS, "qkv proj"),
    "CarryingBlock": (
        lambda: CarryingBlock(
            SharedAttention(2, on_weights=[ResidualRefinement(name="refinement")]), MLP()
        ),
        (TOKENS, MAPS),
        "norm1 attn refinement conv_exp bn1 depth_sep_conv bn2 conv_pro bn3 adapt_bn v proj",
    ),
    "ReAttention": (ReAttention, MAPS, "reatten_matrix var_norm"),
    "Refinement": (Refinement, MAPS, "expand local reduce"),
    "PatchEmbedding": (lambda: PatchEmbedding(6, 4), IMAGES, "proj"),
    "ConvStem": (lambda: ConvStem(6, (4, 4), 4), IMAGES, "conv1 bn1 conv2 bn2 proj"),
}


def made(name):
    make, shape, names = PARENTS[name]
    layer = make()
    layer.build(shape)
    randomize(layer)
    pair = isinstance(shape[0], tuple)
    shapes = shape if pair else (shape,)
    tensors = tuple(torch.tensor(numbers(one, seed)) for seed, one in enumerate(shapes))
    return layer, tensors if pair else tensors[0], names.split()


def named(layer, name):
    (part,) = (part for part in sublayers(layer) if part.name == name)
    return part


def first(outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("name", PARENTS)
def test_hooks_fire_once_per_call(name, training):
    layer, x, names = made(name)
    before = array(first(call(layer, x)))
    fired = []
    handles = []
    for child in names:
        part = named(layer, child)
        handles += [
            part.register_forward_pre_hook(lambda *_, child=child: fired.append(("pre", child))),
            part.register_forward_hook(lambda *_, child=child: fired.append(("after", child))),
        ]
    y = call(layer, x, training)
    assert sorted(fired) == sorted((when, child) for when in ("pre", "after") for child in names)
    fired.clear()
    if not training:
        close(array(first(y)), before)
    for handle in handles:
        handle.remove()
    call(layer, x, training)
    assert fired == []


@pytest.mark.parametrize("name", ("Block", "MLP", "Attention"))
def test_hooks_on_what_draws_in_training(name):
    layer, x, _ = made(name)
    fired = []
    parts = [part for part in sublayers(layer) if getattr(part, "rate", 0)]
    for part in parts:
        part.register_forward_hook(lambda part, *_: fired.append(part))
    call(layer, x, training=True)
    assert parts
    assert all(part in fired for part in parts)


@pytest.mark.parametrize("name", ("Block", "ReAttention", "ConvStem"))
def test_backward_hooks_fire(name):
    layer, x, names = made(name)
    fired = set()
    for child in names:
        hook = lambda *_, child=child: fired.add(child)  # noqa: E731
        named(layer, child).register_full_backward_hook(hook)
    first(call(layer, x.requires_grad_(), training=True)).square().sum().backward()
    assert fired == set(names)


def test_a_hook_changes_the_output():
    layer, x, _ = made("Attention")
    named(layer, "proj").register_forward_hook(lambda layer, inputs, y: 2 * y)
    doubled = array(layer(x))
    named(layer, "proj")._forward_hooks.clear()
    close(doubled, 2 * array(layer(x)))


def test_what_a_hook_keeps_is_not_overwritten():
    layer, x, _ = made("CarryingBlock")
    kept = []
    named(layer, "bn1").register_forward_hook(lambda layer, inputs, y: kept.append((y, y.clone())))
    for training in (False, True):
        call(layer, x, training)
    for y, copy in kept:
        assert torch.equal(y, copy)


def test_global_hooks_fire():
    layer, x, names = made("Block")
    fired = []
    register = torch.nn.modules.module.register_module_forward_hook
    handle = register(lambda module, *_: fired.append(module.name))
    try:
        call(layer, x)
    finally:
        handle.remove()
    assert set(names) <= set(fired)


def test_hooks_on_the_layers_of_a_model():
    model = FAMILIES["CaiT"]()
    x = np.zeros((1, *model.input_shape[1:]), "float32")
    fired = []
    for step in model.steps:
        step.register_forward_hook(lambda step, *_: fired.append(step.name))
    model(x)
    assert fired == [step.name for step in model.steps]
