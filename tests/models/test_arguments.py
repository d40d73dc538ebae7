"""Invalid arguments: an error at construction that names the argument and its value."""

import inspect

import keras
import pytest
from harness import FAMILIES, numbers

import keras_vitx as kv
from keras_vitx.layers import Attention, GatedPositionalAttention, SharedAttention, TokenMixing

pytestmark = pytest.mark.backend_free

WRONG = [
    ({"input_shape": (16, 16)}, "input_shape", "(16, 16)"),
    ({"input_shape": (None, None, 3)}, "input_shape", "(None, None, 3)"),
    ({"input_shape": (16.0, 16, 3)}, "input_shape", "(16.0, 16, 3)"),
    ({"classes": 0}, "classes", "0"),
    ({"classes": 2.5}, "classes", "2.5"),
    ({"classes": True}, "classes", "True"),
    ({"pooling": "foo"}, "pooling", "'foo'"),
    ({"classifier_activation": "foo"}, "classifier_activation", "'foo'"),
    ({"classifier_activation": keras.layers.Softmax()}, "'softmax'.*not a layer", "<Softmax "),
    ({"weights": "foo"}, "weights", "'foo'"),
    ({"patch_size": 0}, "patch_size", "0"),
    ({"drop_path": 1.0}, "rate", "1.0"),
    ({"drop_path": [0.1]}, "drop_path", "[0.1]"),
    ({"drop_path": None}, "drop_path", "None"),
    ({"dropout": 2.0}, "rate", "2.0"),
    ({"mlp": lambda index: kv.layers.MLP(0)}, "mlp_ratio", "mlp_ratio=0"),
    (
        {"input_shape": (16, 16, 3), "input_tensor": keras.Input((16, 24, 3))},
        "contradicts",
        "input_shape=(16, 16, 3), a tensor of shape (None, 16, 24, 3)",
    ),
    (
        {"input_shape": None, "input_tensor": keras.Input((None, None, 3))},
        "input_shape",
        "(None, None, 3)",
    ),
    ({"color": "blue"}, "unexpected keyword argument", "'color'"),
    ({"residual_dtype": "half"}, "must be None or 'float32'", "'half'"),
    ({"input_tensor": numbers((1, 16, 16, 3))}, "input_tensor", "ndarray"),
]


def refused(family, arguments, name, value):
    """Check that the error names the argument and the value received."""
    with pytest.raises((ValueError, TypeError), match=name) as error:
        FAMILIES[family](**arguments)
    assert value in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("arguments", "name", "value"), WRONG)
def test_wrong_argument_of_any_family(family, arguments, name, value):
    refused(family, arguments, name, value)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "PiT"])
def test_wrong_size_of_any_family(family):
    for shape in ((20, 16, 3), (16, 20, 3)):
        refused(family, {"input_shape": shape}, "input_shape", f"{shape}; the nearest is (")
    for name, value in (("dim", 0), ("depth", 0), ("depth", 2.5)):
        refused(family, {name: value}, name, str(value))
    if family != "Mixer":
        refused(family, {"num_heads": 3}, "num_heads", "num_heads=3, dim=8")
        refused(family, {"num_heads": 0}, "num_heads", "0")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", ("attention", "mlp"))
def test_wrong_factory(family, part):
    layer = TokenMixing(4, name="mine")
    how = "function that takes the index of a block"
    # A layer is callable, but not a factory.
    refused(family, {part: layer}, how, "TokenMixing")
    refused(family, {part: "Attention"}, f"`{part}`.*{how}", "'Attention' for block 0")
    refused(family, {part: lambda index: None}, f"`{part}`.*{how}", "None for block 0")
    refused(family, {part: lambda index: layer}, f"`{part}`.*new layer", "again for block")


@pytest.mark.parametrize(
    "factory", [lambda: Attention(2), lambda index, dim: Attention(2), Attention, TokenMixing]
)
def test_factory_without_index(factory):
    how = "`attention` must be a function that takes the index of a block"
    refused("ViT", {"attention": factory}, how, "for block 0")


class Mine(keras.layers.Layer):
    """A user's layer, with the `call` that a test gives it."""

    def __init__(self, function):
        super().__init__(name="mine")
        self.function = function

    def call(self, x):
        return self.function(x)


class MineOverMaps(Mine, kv.layers.MapLayer):
    """One that states its output shape, rightly or not."""


def fails(x):
    raise KeyError("no such head")


IN_BLOCKS = {
    "on_logits": lambda layers: {"attention": lambda index: Attention(2, on_logits=layers)},
    "on_weights": lambda layers: {"attention": lambda index: Attention(2, on_weights=layers)},
    "on_input": lambda layers: {"attention": lambda index: Attention(2, on_input=layers)},
    "on_output": lambda layers: {"mlp": lambda index: kv.layers.MLP(on_output=layers)},
    "on_hidden": lambda layers: {"mlp": lambda index: kv.layers.MLP(on_hidden=layers)},
    "attention": lambda layers: {"attention": lambda index: layers[0]},
    "mlp": lambda layers: {"mlp": lambda index: layers[0]},
}


@pytest.mark.parametrize("argument", IN_BLOCKS)
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: x[..., 1:], r"keep the shape.*which returns \(None, "),
        (lambda x: x[:, 0], r"keep the shape.*which returns \(None, "),
        (lambda x: None, "run on.*which raised TypeError: .* a tensor, not NoneType"),
        (lambda x: (x, x), "run on.*which raised TypeError: .* a tensor, not tuple"),
        (fails, "run on.*which raised KeyError: 'no such head'"),
    ],
)
def test_faulty_layer_in_a_block(argument, function, what):
    arguments = IN_BLOCKS[argument]
    is_over_maps = argument in ("on_logits", "on_weights")
    for layer in (Mine, MineOverMaps)[: 1 + is_over_maps]:
        with pytest.raises(ValueError, match=f"^`{argument}` must {what}") as error:
            FAMILIES["ViT"](**arguments([layer(function)]), depth=1)
        assert f"Received: {layer.__name__} '" in str(error.value)
        assert str(error.value).endswith("In block 'blocks_0'.")


@pytest.mark.parametrize("argument", [name for name in IN_BLOCKS if name.startswith("on_")])
@pytest.mark.parametrize("layers", [[Mine], [abs], Mine(abs), "relu", None])
def test_argument_that_is_no_list_of_layers(argument, layers):
    with pytest.raises(ValueError, match=f"`{argument}` must be a list of layers. Received: "):
        FAMILIES["ViT"](**IN_BLOCKS[argument](layers))


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_sharing_of_maps(family):
    heads = 4 if family in ("ConViT", "PiT") else 2
    # PiT's first stage has one block, so the second block is the first of its stage.
    sharing = 2 if family == "PiT" else 1

    def sharing_after(make):
        return {"attention": lambda i: SharedAttention(heads) if i == sharing else make()}

    refused(
        family,
        {"attention": lambda index: SharedAttention(heads)},
        "must not read shared maps in the first block",
        "SharedAttention for block 0",
    )
    refused(
        family,
        sharing_after(lambda: TokenMixing(4)),
        "must return an `Attention` for a block that",
        f"TokenMixing for block {sharing - 1}",
    )
    refused(
        family,
        sharing_after(lambda: Attention(1)),
        "shared maps must have the shape",
        "(None, 1, ",
    )


def own_arguments():
    """Return every family's own counts and choices, each with a value that is none."""
    wrong = {int: -1, int | None: -1, str: "foo", str | None: "foo"}
    return [
        (family, {name: wrong[argument.annotation]}, name, repr(wrong[argument.annotation]))
        for family in FAMILIES
        for name, argument in inspect.signature(getattr(kv, family).list_layers).parameters.items()
        if argument.annotation in wrong
    ]


# Arguments that a family hands on to its layers are in tests/layers/test_layer_arguments.py.
FAMILY = [
    ("CaiT", {"class_token_at": 4}, "class_token_at", "4"),
    ("CaiT", {"class_depth": 0}, "class_depth=0", "pooling=None"),
    (
        "CaiT",
        {
            "class_token_at": 1,
            "attention": lambda index: SharedAttention(2) if index == 1 else Attention(2),
        },
        "after the class token",
        "SharedAttention for block 1",
    ),
    ("ViT", {"distillation_token": True, "pooling": "avg"}, "pooling", "'avg'"),
    (
        "ConViT",
        {"num_heads": 2},
        "`num_heads` must be a square",
        "num_heads=2. With conv_start='partial', the first 1 heads start so",
    ),
    ("ConViT", {"local_depth": 4}, "local_depth", "local_depth=4, depth=3"),
    ("ConViT", {"local_depth": 3}, "never sees", "local_depth=3, pooling=None"),
    ("ConViT", {"attention": lambda index: GatedPositionalAttention(4)}, "`grid`", "tokens=5"),
    ("DeepViT", {"re_attention_depth": 3}, "re_attention_depth", "depth=2"),
    ("DeepViT", {"shared_depth": 2}, "`shared_depth` must be at most 1", "2"),
    ("DeepViT", {"similarity": 0.1}, "`similarity_depth` must be at least 1", "similarity=0.1"),
    ("DeepViT", {"similarity": -1, "similarity_depth": 1}, "`similarity`", "-1"),
    ("DeepViT", {"map_scale": "foo"}, "map_scale", "'foo'"),
    ("DeepViT", {"conv_stem": True, "patch_size": 1}, "patch_size", "patch_size=1"),
    ("RefinedViT", {"constraint": "spatial"}, "belong to refiner='paper'", "constraint='spatial'"),
    ("RefinedViT", {"dense_head": True, "pooling": "avg"}, "pooling", "'avg'"),
    ("CBViT", {"position": "middle", "where": "msa"}, "position='middle'", "where='msa'"),
    ("CBViT", {"blocks": [0, 2]}, "`blocks` must be indices", "[0, 2]"),
    ("PiT", {"dims": (8,)}, "must have one entry per stage", "dims=(8,), depths=(1, 2)"),
    ("PiT", {"depths": (1, 0)}, "depths", "0"),
    ("PiT", {"dims": (8, 12)}, "`dim` must be a multiple", "dim=12, width=8"),
    ("PiT", {"num_heads": (3, 4)}, "num_heads", "num_heads=3, dim=8"),
    ("PiT", {"stride": 0}, "stride", "0"),
    ("PiT", {"patch_size": 17}, "input_shape", "patch size 17"),
    ("Mixer", {"pooling": "token"}, "`pooling` must be 'avg' or 'max'", "'token'"),
    ("Mixer", {"mlp_ratio": 4.0}, "`mlp_ratio` must be a pair", "4.0"),
    ("Mixer", {"mlp_ratio": (0, 4.0)}, "mlp_ratio", "hidden=0"),
    *own_arguments(),
]


@pytest.mark.parametrize(("family", "arguments", "name", "value"), FAMILY)
def test_wrong_argument_of_a_family(family, arguments, name, value):
    refused(family, arguments, name, value)


@pytest.mark.parametrize(
    ("name", "hint"), [("CaiT_S25", "'CaiT_S24'"), ("cait_xs36", "'CaiT_XS36'"), ("?", "CaiT_Mini")]
)
def test_unknown_size(name, hint):
    with pytest.raises(ValueError, match="No model is named") as error:
        kv.create_model(name)
    assert repr(name) in str(error.value)
    assert hint in str(error.value)
