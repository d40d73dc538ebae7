"""The arguments of each family."""

import json

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, blocks, close, numbers

from keras_vitx import layers as kvl
from keras_vitx.analysis import trace
from keras_vitx.keras_internals import sublayers

# A family is a list of layers, which are tested on each backend.
pytestmark = pytest.mark.backend_free
IMAGES = numbers((2, 16, 16, 3))


def checked(family, **arguments):
    """Make a model; check that it depends on its images, trains, and is restored by its config."""
    model = FAMILIES[family](**arguments)
    images = numbers((2, *model.input_shape[1:]))
    y = array(model(images))
    assert np.isfinite(array(model(images, training=True))).all()
    assert np.abs(y[0] - y[1]).max() > 0, "images differ"
    # As in a file.
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    twin = keras.saving.deserialize_keras_object(config)
    twin.set_weights(model.get_weights())
    close(array(twin(images)), array(model(images)))
    return model


def parts(model, kind):
    """Return all layers of a class, in a model or a layer."""
    return [part for part in sublayers(model) if isinstance(part, kind)]


def patch_blocks(model):
    """Return the blocks but the class blocks, which have no stochastic depth."""
    return [block for block in blocks(model) if not isinstance(block, kvl.ClassBlock)]


@pytest.mark.parametrize("family", FAMILIES)
def test_rates_of_every_block(family):
    count = len(patch_blocks(FAMILIES[family]()))
    linear = [0.3] * 3 if family == "CaiT" else np.linspace(0, 0.3, count)
    listed = [0.1 + index / 10 for index in range(count)]
    for given, dropout, expected in ((0.3, 0.3, linear), (listed, 0.0, listed)):
        model = FAMILIES[family](drop_path=given, dropout=dropout)
        rates = [(block.drop_path, block.drop_path1.rate) for block in blocks(model)]
        np.testing.assert_allclose(rates[:count], np.stack([expected] * 2, -1))
        assert rates[count:] == [(0, 0)] * (len(rates) - count)
        assert {part.drop.rate for part in parts(model, kvl.MLP)} == {dropout}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_every_block(family):
    model = checked(
        family,
        attention=lambda index: kvl.TokenMixing(hidden=index + 2),
        mlp=lambda index: kvl.MLP(hidden=index + 3),
    )
    hidden = [(block.attention.hidden, block.mlp.hidden) for block in patch_blocks(model)]
    assert hidden == [(index + 2, index + 3) for index in range(len(hidden))]


@pytest.mark.parametrize("family", ("CaiT", "ViT"))
def test_distillation_token(family):
    checked(family, distillation_token=True)
    features, pooled = (
        FAMILIES[family](distillation_token=True, include_top=False, pooling=pooling)
        for pooling in (None, "avg")
    )
    pooled.set_weights(features.get_weights())
    close(array(pooled(IMAGES)), array(features(IMAGES))[:, 2:].mean(axis=1))


@pytest.mark.parametrize("family", ("CaiT", "ViT"))
def test_weights_of_branches(family):
    def gammas(**arguments):
        found = [part.gamma for part in parts(FAMILIES[family](**arguments), kvl.LayerScale)]
        return [array(gamma) for gamma in found if gamma is not None]

    assert gammas(layer_scale=None) == []
    for width, scalar in ((8, False), (1, True)):
        found = np.stack(gammas(layer_scale=0.25, scalar_scale=scalar))
        assert found.shape[1:] == (width,) and (found == 0.25).all()
    drawn = gammas(layer_scale=keras.initializers.RandomUniform(0.1, 0.2))
    assert np.unique(drawn).size == np.size(drawn) > 0, "each draws its own"


# Arguments of one family.


@pytest.mark.parametrize(
    "arguments",
    [
        {"class_depth": 2},
        {"class_token_at": 1, "class_depth": 0},
        {"class_depth": 0, "pooling": "avg"},
        {"class_in_keys": False},
        {"class_layer_scale": None},
    ],
    ids=str,
)
def test_class_token_of_cait(arguments):
    model = checked("CaiT", depth=2, **arguments)
    names = [layer.name for layer in model.layers]
    places = [] if "pooling" in arguments else [2 + arguments.get("class_token_at", 2)]
    assert [index for index, name in enumerate(names) if name == "cls_token"] == places
    class_blocks = parts(model, kvl.ClassBlock)
    count, scale = arguments.get("class_depth", 1), arguments.get("class_layer_scale", 0.5)
    assert [b.name for b in class_blocks] == [f"blocks_token_only_{i}" for i in range(count)]
    for block in class_blocks:
        _, maps = block.attention(numbers((1, 5, 8)), return_attention_scores=True)
        assert maps.shape == (1, 2, 1, 5 if arguments.get("class_in_keys", True) else 4)
        assert (block.ls1.gamma is None) == (scale is None)
        assert scale is None or (array(block.ls1.gamma) == scale).all()
    assert (array(model.get_layer("blocks_0").ls1.gamma) == 0.5).all()


OWN, SHARED, SUM = "Attention", "SharedAttention", "AccumulatingAttention"
GATED, DEEP, PAPER = "GatedPositionalAttention", "Attention+ReAttention", "Attention+Refinement"
AGAIN, RESIDUAL = "SharedAttention+ReAttention", "SharedAttention+ResidualRefinement"
# The class of each block's attention, and of the layers over its maps.
KINDS = [
    ("ConViT", {"local_depth": 0}, [OWN] * 3),
    ("ConViT", {"local_depth": 3, "pooling": "avg"}, [GATED] * 3),
    ("DeepViT", {"depth": 3}, [DEEP] * 3),
    ("DeepViT", {"depth": 3, "re_attention_depth": 2}, [OWN, DEEP, DEEP]),
    ("DeepViT", {"depth": 3, "shared_depth": 1}, [DEEP, DEEP, AGAIN]),
    ("DeepViT", {"depth": 3, "re_attention_depth": 0, "shared_depth": 2}, [OWN, AGAIN, AGAIN]),
    ("RefinedViT", {}, [OWN, RESIDUAL, SUM]),
    ("RefinedViT", {"shared_depth": 2}, [OWN, RESIDUAL, RESIDUAL]),
    ("RefinedViT", {"refiner": "paper"}, [PAPER, SHARED, PAPER]),
    ("RefinedViT", {"refiner": None}, [OWN, SHARED, OWN]),
    ("RefinedViT", {"refiner": None, "shared_depth": 2}, [OWN, SHARED, SHARED]),
    # Those of other families.
    (
        "ViT",
        {"attention": lambda i: kvl.SharedAttention(2) if i else kvl.Attention(2)},
        [OWN, SHARED],
    ),
    ("Mixer", {"attention": lambda i: kvl.DeepAttention(2)}, [DEEP] * 2),
]


@pytest.mark.parametrize(("family", "arguments", "expected"), KINDS, ids=str)
def test_attention_of_each_block(family, arguments, expected):
    model = checked(family, **arguments)
    attentions = [block.attention for block in blocks(model)]
    kinds = [[type(part).__name__ for part in (one, *one.on_weights)] for one in attentions]
    assert ["+".join(kind) for kind in kinds] == expected
    if family == "ConViT":
        names = [step.name for step in model.layers]
        assert names.index("cls_token") == 2 + arguments["local_depth"]


def test_gates_of_convit():
    model = checked("ConViT", initial_gate=-2.0)
    gates = [part.gating_param for part in parts(model, kvl.PositionalAttention)]
    assert len(gates) == 2
    assert all((array(gate) == -2).all() and gate.trainable for gate in gates)
    for part in parts(checked("ConViT", learn_gates=False), kvl.PositionalAttention):
        assert not part.gating_param.trainable and part.qk.trainable_variables


@pytest.mark.parametrize("gated", (True, False))
def test_frozen_attention_of_convit(gated):
    model = FAMILIES["ConViT"](frozen_attention=True, gated=gated)
    twin = type(model).from_config(model.get_config())
    trained = [len(block.attention.trainable_variables) for block in blocks(twin)]
    assert trained == [0, 0, 3]
    assert {len(block.mlp.trainable_variables) for block in blocks(twin)} == {4}


def test_inside_of_the_papers_refiner():
    paper = {"refiner": "paper", "expansion": 2, "kernel_size": 3}
    refinement = parts(FAMILIES["RefinedViT"](**paper), kvl.Refinement)[0]
    assert tuple(refinement.expand.kernel.shape) == (4, 2)
    assert tuple(refinement.local.kernel.shape) == (4, 1, 3, 3)
    # Without a reduction there is one value head per map, in all blocks.
    model = checked("RefinedViT", reduction=False, **paper)
    assert [one.maps.shape[1] for one in trace(model, IMAGES)] == [4, 4, 4]
    for constraint, shape in (("spatial", (4, 1, 3, 3)), ("row+column", (4, 2, 3))):
        model = FAMILIES["RefinedViT"](constraint=constraint, **paper)
        local = parts(model, kvl.LocalMapConvolution)[0]
        assert (local.constraint, tuple(local.kernel.shape)) == (constraint, shape)


BOTH = [(0, "attention"), (0, "mlp"), (1, "attention"), (1, "mlp")]
PLACES = [
    ({}, "on_output", BOTH[1::2]),
    ({"position": "front"}, "on_input", BOTH[1::2]),
    ({"position": "middle"}, "on_hidden", BOTH[1::2]),
    ({"where": "msa"}, "on_output", BOTH[::2]),
    ({"where": "both"}, "on_output", BOTH),
    ({"blocks": [1]}, "on_output", BOTH[3:]),
]


@pytest.mark.parametrize(("arguments", "place", "expected"), PLACES, ids=str)
def test_places_of_context_broadcasting(arguments, place, expected):
    model = checked("CBViT", **arguments)
    found = [
        (index, part)
        for index, block in enumerate(blocks(model))
        for part in ("attention", "mlp")
        for layer in getattr(getattr(block, part), place, ())
        if isinstance(layer, kvl.ContextBroadcasting)
    ]
    assert found == expected
    assert len(found) == len(parts(model, kvl.ContextBroadcasting))


def test_stages_of_pit():
    model = checked(
        "PiT", input_shape=(26, 16, 3), dims=(8, 8, 16), depths=(1, 1, 2), num_heads=(1, 2, 4)
    )
    counts = [one.maps.shape[1:3] for one in trace(model, numbers((1, 26, 16, 3)))]
    # 5 x 3 patches, then 3 x 2, then 2 x 1, each with a class token.
    assert counts == [(1, 16), (2, 7), (4, 3), (4, 3)]
    names = [block.name for block in blocks(model)]
    assert names == [
        f"transformers_{i}" for i in ("0_blocks_0", "1_blocks_0", "2_blocks_0", "2_blocks_1")
    ]
