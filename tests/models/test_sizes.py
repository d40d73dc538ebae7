"""The registered sizes: exact parameter counts."""

from math import prod

import keras
import pytest
from models.stub import PATH, stub

import keras_vitx as kv

pytestmark = pytest.mark.backend_free

COUNTS = {
    "ViT_Ti": 5_717_416,
    "ViT_S": 22_050_664,
    "ViT_B": 86_567_656,
    "ViT_Ti_Plus": 9_982_184,
    "ViT_S_Plus": 49_000_744,
    "ViT_B_Plus": 153_171_944,
    "ViT_16B": 24_423_784,
    "ViT_24B": 36_257_128,
    "ViT_32B": 48_090_472,
    "ConViT_Ti": 5_710_512,
    "ConViT_S": 27_777_322,
    "ConViT_B": 86_540_040,
    "ConViT_Ti_Plus": 9_972_912,
    "ConViT_S_Plus": 48_979_882,
    "ConViT_B_Plus": 153_134_856,
    "DeepViT_16B": 24_426_664,
    "DeepViT_24B": 36_261_448,
    "DeepViT_32B": 48_096_232,
    "DeepViT_S": 27_312_632,
    "DeepViT_L": 58_883_708,
    "RefinedViT_Base": 85_296_992,  # About 86 M in the paper; there is no public code.
    "RefinedViT_S": 25_023_656,
    "RefinedViT_M": 55_029_932,
    "RefinedViT_L": 80_637_192,
    "CBViT_Ti": 5_717_416,
    "CBViT_S": 22_050_664,
    "CBViT_B": 86_567_656,
    "CBSViT_Ti": 5_717_416 + 12 * 192,
    "CBSViT_S": 22_050_664 + 12 * 384,
    "CBSViT_B": 86_567_656 + 12 * 768,
    "PiT_B": 73_764_840,
    "CBPiT_B": 73_764_840,
    "Mixer_S16": 18_528_264,
    "CBMixer_S16": 18_528_264,
    "Mixer_B16": 59_880_472,
    "CaiT_XXS24": 11_956_264,
    "CaiT_XXS36": 17_299_720,
    "CaiT_XS24": 26_560_648,
    "CaiT_XS36": 38_557_432,
    "CaiT_S24": 46_916_200,
    "CaiT_S36": 68_220_712,
    "CaiT_S48": 89_525_224,
    "CaiT_M24": 185_850_088,
    "CaiT_M36": 270_929_512,
    "CaiT_M48": 356_008_936,
    "ViT_Mini": 683_242,
    "CaiT_Mini": 684_458,
    "ConViT_Mini": 681_518,
    "DeepViT_Mini": 683_410,
    "RefinedViT_Mini": 628_750,
    "CBViT_Mini": 683_242,
}
"""Parameters of the public implementations by default, without running statistics.

The Mini sizes are this package's own."""


def count(name, **arguments):
    """Count the parameters of a size without allocating them."""
    try:
        # In this scope, variables have a shape but no value.
        with keras.StatelessScope(initialize_variables=False):
            model = kv.create_model(name, **arguments)
        assert all(variable._value is None for variable in model.weights)
        return sum(prod(variable.shape) for variable in model.trainable_variables)
    finally:
        keras.utils.clear_session()  # Keras keeps a list of variables without values.


@pytest.mark.parametrize("name", kv.list_models())
def test_parameters(name):
    assert set(COUNTS) == set(kv.list_models()), "a registered size needs its count"
    assert count(name) == COUNTS[name]


OTHERS = [
    ("CaiT_S36", {"input_shape": (384, 384, 3)}, 68_366_632),
    (
        "CaiT_XXS24",
        {"input_shape": (32, 48, 3), "classes": 10},
        11_956_264 - (196 - 6) * 192 - 990 * 193,
    ),
    ("RefinedViT_S", {"dense_head": True}, 25_408_656),
    ("RefinedViT_M", {"dense_head": True}, 55_450_932),
    ("RefinedViT_L", {"dense_head": True}, 81_150_192),
]


@pytest.mark.parametrize(("name", "arguments", "parameters"), OTHERS)
def test_parameters_with_other_arguments(name, arguments, parameters):
    assert count(name, **arguments) == parameters


def test_registry():
    assert kv.list_models("cait_s*") == ["CaiT_S24", "CaiT_S36", "CaiT_S48"]
    assert kv.list_models("none*") == []
    for name in kv.list_models():
        constructor = getattr(kv.models, name)
        assert getattr(kv, name) is constructor
        assert constructor.__name__ == name
        for key, value in constructor.data.items():
            assert key in ("input_shape", "classes") or f"{key}={value!r}" in constructor.__doc__
        assert "weights:" in constructor.__doc__
        assert "**overrides" in constructor.__doc__


def test_defaults_and_overrides_of_a_size():
    model = kv.create_model("CaiT_Mini", depth=1, layer_scale=None, drop_path=0.25)
    assert model.name == "CaiT_Mini"
    assert model.family == "CaiT"
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 10)
    block = model.get_layer("blocks_0")
    assert (block.ls1, block.drop_path) == (None, 0.25)
    assert [layer.name for layer in model.layers] == [
        *("patch_embed", "pos_embed", "blocks_0", "cls_token"),
        *("blocks_token_only_0", "blocks_token_only_1", "norm", "pool", "head"),
    ]


def test_editors_see_the_parameters_of_today():
    assert PATH.read_text() == stub(), "run python tests/models/stub.py"
