"""Cases of every layer. Those of `@register` and the public ones are enrolled by themselves.

The first case of a layer has the arguments that it requires, from `REQUIRED`, and the input that
its docstring states. `ROWS` has further cases, and the first where a layer needs another: a
function that makes it, or a tuple of that, the shape of the input, and a function that draws it.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
from harness import array, call, joined, numbers

from keras_vitx import layers as kvl
from keras_vitx.layers.normalizers import NORMALIZERS
from keras_vitx.layers.tokens import TokenDownsampling


@dataclass(frozen=True)
class LayerCase:
    """A function that makes a layer, and the shape of its input, or of a pair, without batch.

    `draw` is a function of a shape, with batch: None gives probabilities where the layer takes
    maps, and else normal numbers.
    """

    make: Callable[[], keras.layers.Layer]
    shape: tuple
    draw: Callable[[tuple], np.ndarray] | None = None

    def values(self, count):
        """Return the input for a number of images."""
        takes_maps = bool(MAPS_STATED.search(input_of(self.make())))

        def drawn(shape):
            draw = probabilities if takes_maps and len(shape) == 4 else numbers
            return (self.draw or draw)(shape)

        x = self.inputs(lambda shape: drawn((count, *shape)))
        if keras.backend.backend() == "torch":
            self.check_finite(x)
        return x

    def check_finite(self, x):
        if self not in FINITE:
            layer = self.make()
            finite = np.isfinite(array(joined(call(layer, x)))).all()
            text = f"{type(layer).__name__} gives NaN: write a row with `draw` in cases.py"
            assert finite, text
            FINITE.add(self)

    def inputs(self, function):
        """Return the input, or the pair of inputs: `function` of each shape."""
        if isinstance(self.shape[0], tuple):
            return tuple(map(function, self.shape))
        return function(self.shape)

    def model(self):
        """Return a functional model of only this layer."""
        inputs = self.inputs(keras.Input)
        return keras.Model(inputs, self.make()(inputs))


FINITE = set()
MAPS_STATED = re.compile(r"\(batch, heads,\s(queries, keys|tokens,\stokens)\)")


def input_of(layer):
    """Return what the docstring of a layer says of its input."""
    stated = re.search(r"Inputs?\b[^;]*", inspect.getdoc(type(layer)))
    return stated[0].partition("\n\n")[0].partition("Output:")[0] if stated else ""


def probabilities(shape):
    powers = np.exp(2 * numbers(shape))
    return powers / powers.sum(-1, keepdims=True)


REQUIRED = {
    "num_heads": lambda: 4,
    "dim": lambda: 8,
    "hidden": lambda: 6,
    "classes": lambda: 3,
    "attention": lambda: kvl.Attention(2),
    "mlp": lambda: kvl.MLP(),
}
"""Values of arguments without a default."""
DIMENSIONS = {
    **{"heads": 4, "queries": 3, "keys": 5, "patches": 9, "dim": 8},
    **{"height": 16, "width": 32, "channels": 3},
}
"""Dimensions of inputs, by their names in docstrings; others are 5."""
FLOAT32 = ("ReAttention", "ImagePreprocessing", "DistilledHead", "DenseHead")
"""Layers that compute in float32 in every precision."""
NO_EFFECT = ("/proj_l/bias", "/pos_proj/bias", "/k/bias", "/mix/bias")
"""Endings of the paths of variables that a softmax cancels."""

TOKENS = (5, 8)
PAIR = (TOKENS, (2, 5, 5))
rotary = functools.partial(kvl.RotaryEmbedding, (2, 4), 3)
QUERIES_KEYS = ((11, 2, 8), (11, 2, 8))
MAPS = (4, 3, 5)
ROWS = {
    "Attention/maps": lambda: kvl.Attention(
        2,
        on_logits=[kvl.HeadMixing(use_bias=False), kvl.HeadMixing(name="second", use_bias=False)],
        on_weights=[kvl.HeadMixing(name="after")],
        qkv_bias=False,
        dropout=0.3,
        proj_dropout=0.2,
    ),
    "Attention/uniform": lambda: kvl.Attention(1, head_size=4, on_weights=[kvl.UniformHeads(2)]),
    "Attention/around": lambda: kvl.Attention(
        2,
        on_input=[kvl.ContextBroadcasting()],
        on_logits=[kvl.Temperature(2.0, learnable=True)],
        on_output=[kvl.ContextBroadcasting(scale=0.1)],
    ),
    "Attention/rotary": (
        lambda: kvl.Attention(2, on_queries_keys=[kvl.RotaryEmbedding((2, 2), 2, learned=True)]),
        (6, 16),
    ),
    "RotaryEmbedding": (lambda: rotary(order="xy"), QUERIES_KEYS),
    "RotaryEmbedding/learned": lambda: rotary(learned=True, order="xy"),
    "RotaryEmbedding/centered": lambda: rotary(halves=True, centered=True),
    "RotaryEmbedding/reference": lambda: rotary(temperature=1e4, reference_grid=(5, 7)),
    "RelativePositionBias": (lambda: kvl.RelativePositionBias((3, 3), 2), (4, 11, 11)),
    "Attention/unbiased keys": lambda: kvl.Attention(2, qkv_bias="qv"),
    "MLP/gated": lambda: kvl.MLP(
        8 / 3, "silu", gated=True, on_hidden=[keras.layers.LayerNormalization()], dropout=0.2
    ),
    **{
        f"Attention/{name}": lambda name=name: kvl.Attention(2, normalizer=name)
        for name in NORMALIZERS
    },
    "Attention/gate_head": lambda: kvl.Attention(2, gate="head", normalizer="softpick"),
    "ClassAttention/gate": lambda: kvl.ClassAttention(2, gate="element", normalizer="entmax15"),
    "GatedPositionalAttention/sparse": (
        lambda: kvl.GatedPositionalAttention(4, normalizer="sparsemax"),
        (4, 8),
    ),
    "PositionalAttention/rectangle": (
        lambda: kvl.PositionalAttention(
            2,
            grid=[2, 3],
            conv_start=False,
            qkv_bias=True,
            on_logits=[kvl.HeadMixing(name="mix", use_bias=False)],
        ),
        (6, 8),
    ),
    "GatedPositionalAttention/partial": (
        lambda: kvl.GatedPositionalAttention(
            6, conv_start="partial", locality_strength=0.5, on_weights=[kvl.ReAttention()]
        ),
        (4, 12),
    ),
    "GatedPositionalAttention/frozen": lambda: kvl.GatedPositionalAttention(
        4, dropout=0.2, trainable=False
    ),
    "SharedAttention/deep": (
        lambda: kvl.SharedAttention(2, on_weights=[kvl.ReAttention(0.5)], dropout=0.2),
        PAIR,
    ),
    "AccumulatingAttention/talking": (
        lambda: kvl.AccumulatingAttention(
            2,
            on_logits=[kvl.HeadMixing(name="mix", use_bias=False)],
            on_weights=[kvl.HeadMixing()],
            qkv_bias=False,
        ),
        PAIR,
    ),
    "ClassAttention/two": lambda: kvl.ClassAttention(
        4,
        num_class_tokens=2,
        class_in_keys=False,
        on_logits=[kvl.HeadMixing(name="mix")],
        qkv_bias=False,
        dropout=0.1,
    ),
    "HeadMixing/fewer": lambda: kvl.HeadMixing(heads_out=2),
    "ReAttention/plain": lambda: kvl.ReAttention(normalize=False),
    "LocalMapConvolution/5": lambda: kvl.LocalMapConvolution(kernel_size=5),
    "LocalMapConvolution/spatial": (
        lambda: kvl.LocalMapConvolution(constraint="spatial", grid=[2, 3]),
        (4, 3, 7),
    ),
    "LocalMapConvolution/row_column": lambda: kvl.LocalMapConvolution(
        kernel_size=5, constraint="row+column"
    ),
    "Refinement/no_reduction": lambda: kvl.Refinement(expansion=2, kernel_size=5, reduction=False),
    "Temperature": (lambda: kvl.Temperature(0.5), MAPS),
    "Temperature/learnable": lambda: kvl.Temperature(2, learnable=True),
    "MLP/around": lambda: kvl.MLP(
        on_input=[kvl.ContextBroadcasting()],
        on_hidden=[kvl.ContextBroadcasting(scale=0.5)],
        on_output=[kvl.LayerScale(0.1)],
        hidden=12,
    ),
    "ContextBroadcasting/max": lambda: kvl.ContextBroadcasting("max", halve=False),
    "ContextBroadcasting/class": lambda: kvl.ContextBroadcasting("class"),
    "ContextBroadcasting/product": lambda: kvl.ContextBroadcasting("class_product"),
    "ContextBroadcasting/both": lambda: kvl.ContextBroadcasting(
        "class_and_mean", scale=0.5, halve=True
    ),
    "ContextBroadcasting/scaled": lambda: kvl.ContextBroadcasting(
        scale=keras.initializers.RandomUniform(0.0, 0.2, seed=1)
    ),
    "LayerScale": (kvl.LayerScale, TOKENS),
    "LayerScale/initializer": lambda: kvl.LayerScale(
        keras.initializers.RandomUniform(0.0, 0.2, seed=1)
    ),
    "DropPath": (kvl.DropPath, TOKENS),
    "DropPath/rate": lambda: kvl.DropPath(0.3, seed=7),
    "PatchEmbedding/stride": (lambda: kvl.PatchEmbedding(8, patch_size=4, stride=3), (13, 9, 3)),
    "ConvStem/three": (lambda: kvl.ConvStem(6, channels=[4, 5, 6], patch_size=4), (8, 12, 1)),
    "ImagePreprocessing": (
        lambda: kvl.ImagePreprocessing((6, 8), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], crop_ratio=0.9),
        (9, 14, 3),
    ),
    "ImagePreprocessing/border": (
        lambda: kvl.ImagePreprocessing([12, 12], (0.5,), (0.5,), 1.13, "bilinear"),
        (7, 9, 1),
    ),
    "TokenDownsampling": (lambda: TokenDownsampling(16, (3, 4)), (13, 8)),
    "TokenDownsampling/two": (lambda: TokenDownsampling(8, [2, 2], num_prefix_tokens=2), (6, 8)),
    "PositionEmbedding": (lambda: kvl.PositionEmbedding((2, 3)), (6, 8)),
    "PositionEmbedding/prefix": (
        lambda: kvl.PositionEmbedding([2, 3], num_prefix_tokens=2),
        (8, 8),
    ),
    "TokenPooling/avg": lambda: kvl.TokenPooling("avg", num_prefix_tokens=2),
    "TokenPooling/max": lambda: kvl.TokenPooling("max", num_prefix_tokens=0),
    "Block/talking": lambda: kvl.Block(
        kvl.TalkingHeadsAttention(2, dropout=0.1),
        kvl.MLP(2, dropout=0.1),
        layer_scale=keras.initializers.RandomUniform(0.1, 0.5, seed=2),
        drop_path=0.2,
        epsilon=1e-5,
        name="blocks_3",
    ),
    "Block/scalar": lambda: kvl.Block(
        kvl.Attention(2), kvl.MLP(), layer_scale=0.5, scalar_scale=True
    ),
    "Block/residual_scale": lambda: kvl.Block(
        kvl.DeepAttention(2),
        kvl.MLP(on_output=[kvl.ContextBroadcasting(), kvl.LayerScale(0.5)]),
        residual_scale=0.5,
        epsilon=0.1,
    ),
    "Block/post_norm": lambda: kvl.Block(
        kvl.Attention(2), kvl.MLP(), layer_scale=0.5, post_norm=True
    ),
    "Block/mixing": lambda: kvl.Block(kvl.TokenMixing(6), kvl.MLP()),
    "SharedMapsBlock": (
        lambda: kvl.SharedMapsBlock(
            kvl.SharedAttention(2, on_weights=[kvl.ResidualRefinement(map_scale=0.5)]),
            kvl.MLP(),
            residual_scale=0.5,
        ),
        PAIR,
    ),
    "SharedMapsBlock/first": (
        lambda: kvl.SharedMapsBlock(kvl.Attention(2), kvl.MLP(), receives_maps=False),
        TOKENS,
    ),
    "SharedMapsBlock/last": (
        lambda: kvl.SharedMapsBlock(
            kvl.AccumulatingAttention(2), kvl.MLP(), emits_maps=False, layer_scale=0.5
        ),
        PAIR,
    ),
    "ClassBlock": (
        lambda: kvl.ClassBlock(kvl.ClassAttention(2), kvl.MLP(), layer_scale=0.5),
        TOKENS,
    ),
    "ClassBlock/two": (
        lambda: kvl.ClassBlock(
            kvl.ClassAttention(2, num_class_tokens=2, class_in_keys=False), kvl.MLP(), drop_path=0.1
        ),
        TOKENS,
    ),
}


def first_case(make):
    """Return the first case of a layer, made with the arguments that it requires."""
    parameters = inspect.signature(make).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if unknown := [name for name in names if name not in REQUIRED]:
        raise ValueError(f"arguments without a default and a value in REQUIRED: {unknown}")

    def made():
        return make(**{name: REQUIRED[name]() for name in names})

    shapes = [
        tuple(DIMENSIONS.get(name, 5) for name in dimensions.split(", "))
        for dimensions in re.findall(r"`\(batch, ([^.]+?)\)`", input_of(made()))
    ]
    if not shapes:
        raise ValueError("the docstring must state an input, such as Input: `(batch, tokens, dim)`")
    case = LayerCase(made, shapes[0] if len(shapes) == 1 else tuple(shapes))
    if keras.backend.backend() == "torch":  # The others compile it, which takes seconds.
        case.model()
    return case


def enrolled():
    """Return every registered and every public layer; the latter may be functions that make one."""
    found = {name: made for name, made in vars(kvl).items() if name[0].isupper()}
    for cls in keras.saving.get_custom_objects().values():
        if cls.__module__.startswith("keras_vitx.layers.") and issubclass(cls, keras.layers.Layer):
            found[cls.__name__] = cls
    return {
        name: made for name, made in found.items() if name not in ("MapLayer", "SharingAttention")
    }


LAYERS: dict[str, LayerCase] = {}
WITHOUT_CASE: dict[str, str] = {}
"""Why there is no first case, by layer."""
for _name, _make in enrolled().items():
    if _name not in ROWS:
        try:
            LAYERS[_name] = first_case(_make)
        except Exception as error:
            WITHOUT_CASE[_name] = f"{type(error).__name__}: {error}"
for _name, _row in ROWS.items():
    _make, _shape, _draw, *_ = (*(_row if isinstance(_row, tuple) else [_row]), None, None)
    _first = _name.partition("/")[0]
    if _first not in WITHOUT_CASE:
        LAYERS[_name] = LayerCase(_make, _shape or LAYERS[_first].shape, _draw)
