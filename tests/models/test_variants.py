"""The arguments of each family."""

import json

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, blocks, close, numbers

from keras_vitx.analysis import trace
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    ClassBlock,
    ContextBroadcasting,
    DistilledHead,
    LayerScale,
    LocalMapConvolution,
    PositionalAttention,
    ReAttention,
    Refinement,
    ResidualRefinement,
    SharedAttention,
    TokenMixing,
)

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


def kinds(model):
    """Return the names of the classes of the blocks' attentions."""
    return [type(block.attention).__name__ for block in blocks(model)]


def where(model, kind):
    """Return the indices of the blocks that contain a layer of a class."""
    return [index for index, block in enumerate(blocks(model)) if parts(block, kind)]


# Arguments shared by several families.


@pytest.mark.parametrize("family", FAMILIES)
def test_rates_of_stochastic_depth(family):
    model = FAMILIES[family](drop_path=0.3)
    # Class blocks have none.
    own = [block for block in blocks(model) if not isinstance(block, ClassBlock)]
    rates = [block.drop_path for block in own]
    expected = [0.3] * 3 if family == "CaiT" else np.linspace(0, 0.3, len(own))
    np.testing.assert_allclose(rates, expected)
    listed = [0.1 + index / 10 for index in range(len(own))]
    model = FAMILIES[family](drop_path=listed)
    found = [block.drop_path for block in blocks(model)]
    assert found == [*listed, *[0.0] * (len(found) - len(own))]
    assert [block.drop_path1.rate for block in blocks(model)] == found


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout(family):
    for rate in (0.0, 0.25):
        model = FAMILIES[family](dropout=rate)
        assert {part.drop.rate for part in parts(model, MLP)} == {rate}


@pytest.mark.parametrize("family", ("CaiT", "ViT"))
def test_distillation_token(family):
    model = checked(family, distillation_token=True, classifier_activation=None)
    names = [step.name for step in model.steps]
    # Each is prepended to all tokens, so the class token is the first.
    assert names.index("cls_token") == names.index("dist_token") + 1
    assert isinstance(model.steps[-1], DistilledHead)
    features = FAMILIES[family](distillation_token=True, include_top=False)
    assert features.output_shape == (None, 6, 8)
    pooled = FAMILIES[family](distillation_token=True, include_top=False, pooling="avg")
    for one in (features, pooled):
        one.set_weights(model.get_weights()[:-4])
    tokens = array(features(IMAGES))
    close(array(pooled(IMAGES)), tokens[:, 2:].mean(axis=1))
    kernel, bias, other_kernel, other_bias = model.get_weights()[-4:]
    expected = (tokens[:, 0] @ kernel + bias + tokens[:, 1] @ other_kernel + other_bias) / 2
    close(array(model(IMAGES)), expected)


@pytest.mark.parametrize("family", ("CaiT", "ViT"))
def test_weights_of_branches(family):
    model = checked(family, layer_scale=0.25)
    assert {tuple(block.ls1.gamma.shape) for block in blocks(model)} == {(8,)}
    assert all((array(part.gamma) == 0.25).all() for part in parts(model, LayerScale))
    model = checked(family, layer_scale=0.5, scalar_scale=True)
    assert {tuple(part.gamma.shape) for part in parts(model, LayerScale)} == {(1,)}
    model = checked(family, layer_scale=None)
    assert not parts(model, LayerScale)
    initializer = keras.initializers.RandomUniform(0.1, 0.2)
    gammas = [
        array(part.gamma) for part in parts(checked(family, layer_scale=initializer), LayerScale)
    ]
    assert all(((gamma >= 0.1) & (gamma <= 0.2)).all() for gamma in gammas)
    assert np.unique(gammas).size == np.size(gammas), "each draws its own"


@pytest.mark.parametrize("family", ("PiT", "Mixer"))
def test_context_broadcast(family):
    assert where(FAMILIES[family](), ContextBroadcasting) == []
    model = checked(family, context_broadcast=True)
    assert where(model, ContextBroadcasting) == list(range(len(blocks(model))))
    for block in blocks(model):
        assert block.mlp.on_output == parts(block, ContextBroadcasting)


# Arguments of one family.


@pytest.mark.parametrize(
    "arguments",
    [
        {"class_depth": 2},
        {"class_token_at": 0},
        {"class_token_at": 1, "class_depth": 0},
        {"class_depth": 0, "pooling": "avg"},
        {"class_in_keys": False},
        {"class_layer_scale": None},
        {"class_layer_scale": 1.0},
    ],
    ids=str,
)
def test_class_token_of_cait(arguments):
    model = checked("CaiT", depth=2, **arguments)
    names = [layer.name for layer in model.steps]
    if arguments.get("pooling"):
        assert "cls_token" not in names
    else:
        assert names.index("cls_token") == 2 + arguments.get("class_token_at", 2)
    class_blocks = parts(model, ClassBlock)
    assert len(class_blocks) == arguments.get("class_depth", 1)
    assert [block.name for block in class_blocks] == [
        f"blocks_token_only_{index}" for index in range(len(class_blocks))
    ]
    for block in class_blocks:
        _, maps = block(numbers((1, 5, 8)), return_attention_scores=True)
        assert maps.shape == (1, 2, 1, 5 if arguments.get("class_in_keys", True) else 4)
        scale = arguments.get("class_layer_scale", 0.5)
        assert (block.ls1 is None) == (scale is None)
        assert scale is None or (array(block.ls1.gamma) == scale).all()
    assert (array(model.get_layer("blocks_0").ls1.gamma) == 0.5).all()


def test_local_blocks_of_convit():
    for depth in range(4):
        pooling = "avg" if depth == 3 else None
        model = checked("ConViT", local_depth=depth, pooling=pooling)
        own, plain = "GatedPositionalAttention", "Attention"
        assert kinds(model) == [own] * depth + [plain] * (3 - depth)
        assert [step.name for step in model.steps].index("cls_token") == 2 + depth


def test_convolutional_start_of_convit():
    def start(**arguments):
        attention = blocks(checked("ConViT", **arguments))[0].attention
        return array(attention.v.kernel), array(attention.pos_proj.kernel)

    values, places = start()
    np.testing.assert_array_equal(values, np.eye(8))
    # Heads of a 2 x 2 kernel attend half a patch up or down, left or right.
    expected = [[-1, -1, 1, 1], [-1, 1, -1, 1], [-1] * 4]
    np.testing.assert_array_equal(places, expected)
    _, weaker = start(locality_strength=0.5)
    np.testing.assert_array_equal(weaker, places / 2)
    values, places = start(conv_start=False)
    assert 0 < np.abs(values).max() < 0.1 and 0 < np.abs(places).max() < 0.1
    values, places = start(conv_start="partial", num_heads=2)
    np.testing.assert_array_equal(values, np.eye(8))
    np.testing.assert_array_equal(places[:, 0], [0, 0, -1])
    assert 0 < np.abs(places[:, 1]).max() < 0.1


def test_gates_of_convit():
    model = checked("ConViT", gate=-2.0)
    gates = [part.gating_param for part in parts(model, PositionalAttention)]
    assert len(gates) == 2
    assert all((array(gate) == -2).all() and gate.trainable for gate in gates)
    model = checked("ConViT", learn_gates=False)
    untrained = {variable.path for variable in model.non_trainable_variables}
    assert {f"blocks_{index}/attn/gating_param" for index in range(2)} <= untrained
    assert all(part.qk.trainable_variables for part in parts(model, PositionalAttention))


@pytest.mark.parametrize("gated", (True, False))
def test_frozen_attention_of_convit(gated):
    model = checked("ConViT", frozen_attention=True, gated=gated)
    twin = type(model).from_config(model.get_config())
    for one in (model, twin):
        for block in blocks(one)[:2]:
            assert not block.attention.trainable_variables
            assert len(block.attention.weights) >= 6
            assert len(block.mlp.trainable_variables) == 4
            assert len(block.norm1.trainable_variables) == 2
        assert len(blocks(one)[2].attention.trainable_variables) == 3


def test_depths_of_deepvit():
    def depths(**arguments):
        model = checked("DeepViT", depth=3, **arguments)
        return where(model, ReAttention), where(model, SharedAttention)

    assert depths() == ([0, 1, 2], [])
    assert depths(re_attention_depth=0) == ([], [])
    assert depths(re_attention_depth=2) == ([1, 2], [])
    assert depths(shared_depth=1) == ([0, 1, 2], [2])
    assert depths(re_attention_depth=0, shared_depth=2) == ([1, 2], [1, 2])


def total_loss(model):
    model(IMAGES, training=True)
    return sum(float(array(loss)) for loss in model.losses)


@pytest.mark.parametrize("family", ("DeepViT", "RefinedViT"))
def test_similarity(family):
    """The added loss is the weight times the mean over pairs of blocks (DeepViT, Appendix A)."""
    common = {"depth": 4, "drop_path": 0.0, "similarity": 0.1}
    if family == "RefinedViT":
        common["similarity_of"] = "used"
    model = checked(family, similarity_depth=2, **common)
    weights = [getattr(block, "similarity", 0.0) for block in blocks(model)]
    assert weights == [0.0, 0.05, 0.05, 0.0]
    model(IMAGES, training=False)
    assert model.losses == []
    pairs = []
    for index in (1, 2):
        # One pair only: the same blocks, without the weight of the other pair.
        one = FAMILIES[family](similarity_depth=2, **common)
        one.set_weights(model.get_weights())
        blocks(one)[3 - index].similarity = 0.0
        pairs.append(total_loss(one) / 0.05)
    assert pairs[0] != pairs[1]
    assert all(abs(pair) <= 1 for pair in pairs)
    close(total_loss(model), 0.1 * np.mean(pairs), 1e-4)
    over = FAMILIES[family](similarity_depth=2, similarity_over="queries", **common)
    over.set_weights(model.get_weights())
    assert abs(total_loss(over) - total_loss(model)) > 1e-5


def test_refiners():
    def found(refiner, **arguments):
        model = checked("RefinedViT", refiner=refiner, **arguments)
        return kinds(model), where(model, ResidualRefinement), where(model, Refinement)

    own, shared = "Attention", "SharedAttention"
    assert found("released") == ([own, shared, "AccumulatingAttention"], [1], [])
    assert found("paper") == ([own, shared, own], [], [0, 2])
    assert found(None) == ([own, shared, own], [], [])
    assert found(None, shared_depth=0) == ([own] * 3, [], [])
    assert found(None, shared_depth=2) == ([own, shared, shared], [], [])
    assert found("released", shared_depth=2) == ([own, shared, shared], [1, 2], [])


def test_inside_of_the_papers_refiner():
    paper = {"refiner": "paper", "expansion": 2, "kernel_size": 3}
    refinement = parts(checked("RefinedViT", **paper), Refinement)[0]
    assert tuple(refinement.expand.kernel.shape) == (4, 2)
    assert tuple(refinement.reduce.kernel.shape) == (2, 4)
    assert tuple(refinement.local.kernel.shape) == (4, 1, 3, 3)
    # Without a reduction there is one value head per map, in all blocks.
    model = checked("RefinedViT", reduction=False, **paper)
    assert [one.maps.shape[1] for one in trace(model, IMAGES)] == [4, 4, 4]
    for constraint, shape in (("spatial", (4, 1, 3, 3)), ("row+column", (4, 2, 3))):
        model = checked("RefinedViT", constraint=constraint, **paper)
        local = parts(model, LocalMapConvolution)[0]
        assert (local.constraint, tuple(local.kernel.shape)) == (constraint, shape)


def test_places_of_context_broadcasting():
    def places(**arguments):
        model = checked("CBViT", **arguments)
        found = {
            (index, part, place)
            for index, block in enumerate(blocks(model))
            for part in ("attention", "mlp")
            for place in ("on_input", "on_hidden", "on_output")
            if parts_in(getattr(getattr(block, part), place, ()))
        }
        assert len(found) == len(parts(model, ContextBroadcasting))
        return found

    def parts_in(layers):
        return [layer for layer in layers if isinstance(layer, ContextBroadcasting)]

    both = [(index, part) for index in (0, 1) for part in ("attention", "mlp")]
    assert places() == {(0, "mlp", "on_output"), (1, "mlp", "on_output")}
    assert places(position="front") == {(0, "mlp", "on_input"), (1, "mlp", "on_input")}
    assert places(position="middle") == {(0, "mlp", "on_hidden"), (1, "mlp", "on_hidden")}
    assert places(where="msa") == {(0, "attention", "on_output"), (1, "attention", "on_output")}
    assert places(where="both") == {(*place, "on_output") for place in both}
    assert places(where="both", position="front") == {(*place, "on_input") for place in both}
    assert places(blocks=[1]) == {(1, "mlp", "on_output")}
    assert places(blocks=[]) == set()


def test_stages_of_pit():
    model = checked(
        "PiT", input_shape=(26, 16, 3), dims=(8, 8, 16), depths=(1, 1, 2), num_heads=(1, 2, 4)
    )
    counts = [one.maps.shape[1:3] for one in trace(model, numbers((1, 26, 16, 3)))]
    # 5 x 3 patches, then 3 x 2, then 2 x 1, each with a class token.
    assert counts == [(1, 16), (2, 7), (4, 3), (4, 3)]
    assert [block.name for block in blocks(model)] == [
        "transformers_0_blocks_0",
        "transformers_1_blocks_0",
        "transformers_2_blocks_0",
        "transformers_2_blocks_1",
    ]


# Layers given by the caller.


@pytest.mark.parametrize("family", FAMILIES)
def test_factories_are_given_the_index(family):
    attention_of, mlp_of = [], []

    def attention(index):
        attention_of.append(index)
        return TokenMixing(hidden=index + 2)

    def mlp(index):
        mlp_of.append(index)
        return MLP(hidden=index + 3)

    model = checked(family, attention=attention, mlp=mlp)
    own = [block for block in blocks(model) if not isinstance(block, ClassBlock)]
    assert attention_of == mlp_of == list(range(len(own)))
    assert [block.attention.hidden for block in own] == [index + 2 for index in attention_of]
    assert [block.mlp.hidden for block in own] == [index + 3 for index in mlp_of]
