"""Cases and checks for every layer and every model.

A new layer needs a row in `LAYERS`, a new family one in `FAMILIES`, a new golden
file one in `GOLDEN_CASES`; a test fails for those without.
"""

import contextlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from keras import ops

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    ClassAttention,
    ClassBlock,
    ClassToken,
    ContextBroadcasting,
    ConvStem,
    DeepAttention,
    DenseHead,
    DistilledHead,
    DropPath,
    GatedPositionalAttention,
    HeadMixing,
    ImagePreprocessing,
    LayerScale,
    LocalMapConvolution,
    PatchEmbedding,
    PositionalAttention,
    PositionEmbedding,
    ReAttention,
    RefinedAttention,
    Refinement,
    ResidualRefinement,
    SharedAttention,
    SharedMapsBlock,
    SqueezeExcitation,
    TalkingHeadsAttention,
    Temperature,
    TokenMixing,
    TokenPooling,
    UniformHeads,
)
from keras_vitx.layers.tokens import PatchMap, TokenDownsampling

TESTS = Path(__file__).parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
BACKEND = keras.backend.backend()
BACKENDS = ("tensorflow", "jax", "torch")
MIXED = ("mixed_bfloat16", "mixed_float16")
PRECISIONS = ("float32", *MIXED)


@dataclass(frozen=True)
class LayerCase:
    """One way to construct a layer.

    Attributes:
        make: A function that returns the layer, unbuilt.
        shape: Shape of the input, without the batch; a pair of shapes for a pair.
        random: Whether training draws random numbers.
        zero_gradients: Path suffixes of variables that have no effect.
        float32: Whether it computes in float32 in every precision.
    """

    make: Callable[[], keras.layers.Layer]
    shape: tuple
    random: bool = False
    zero_gradients: tuple[str, ...] = ()
    float32: bool = False

    def inputs(self, function):
        """Return the input, or the pair of inputs: `function` of each shape."""
        if isinstance(self.shape[0], tuple):
            return tuple(map(function, self.shape))
        return function(self.shape)


TOKENS = (5, 8)
PAIR = (TOKENS, (2, 5, 5))
MAPS = (4, 3, 5)
LAYERS = {
    "Attention": LayerCase(lambda: Attention(2), TOKENS),
    "Attention/maps": LayerCase(
        lambda: Attention(
            2,
            on_logits=[HeadMixing(use_bias=False), HeadMixing(name="second", use_bias=False)],
            on_weights=[HeadMixing(name="after")],
            qkv_bias=False,
            dropout=0.3,
            proj_dropout=0.2,
        ),
        TOKENS,
        random=True,
    ),
    "Attention/uniform": LayerCase(
        lambda: Attention(1, head_size=4, on_weights=[UniformHeads(2)]), TOKENS
    ),
    "Attention/around": LayerCase(
        lambda: Attention(
            2,
            on_input=[ContextBroadcasting()],
            on_logits=[Temperature(2.0, learnable=True)],
            on_output=[ContextBroadcasting(scale=0.1)],
        ),
        TOKENS,
    ),
    "TalkingHeadsAttention": LayerCase(
        lambda: TalkingHeadsAttention(4), TOKENS, zero_gradients=("proj_l/bias",)
    ),
    "DeepAttention": LayerCase(lambda: DeepAttention(2), TOKENS),
    "RefinedAttention": LayerCase(lambda: RefinedAttention(2), TOKENS),
    "RefinedAttention/spatial": LayerCase(
        lambda: RefinedAttention(
            2, expansion=2, reduction=False, constraint="spatial", grid=[2, 2], dropout=0.2
        ),
        TOKENS,
        random=True,
    ),
    "PositionalAttention": LayerCase(
        lambda: PositionalAttention(4), (9, 8), zero_gradients=("pos_proj/bias",)
    ),
    "PositionalAttention/rectangle": LayerCase(
        lambda: PositionalAttention(
            2,
            grid=[2, 3],
            conv_start=False,
            qkv_bias=True,
            on_logits=[HeadMixing(name="mix", use_bias=False)],
        ),
        (6, 8),
        zero_gradients=("pos_proj/bias",),
    ),
    "GatedPositionalAttention": LayerCase(
        lambda: GatedPositionalAttention(4), (9, 8), zero_gradients=("pos_proj/bias",)
    ),
    "GatedPositionalAttention/free": LayerCase(
        lambda: GatedPositionalAttention(
            2, gate=0.0, learn_gates=False, grid=[2, 3], conv_start=False, qkv_bias=True
        ),
        (6, 8),
        zero_gradients=("pos_proj/bias",),
    ),
    "GatedPositionalAttention/partial": LayerCase(
        lambda: GatedPositionalAttention(
            6, conv_start="partial", locality_strength=0.5, on_weights=[ReAttention()]
        ),
        (4, 12),
        zero_gradients=("pos_proj/bias",),
    ),
    "GatedPositionalAttention/frozen": LayerCase(
        lambda: GatedPositionalAttention(4, dropout=0.2, trainable=False), (9, 8), random=True
    ),
    "SharedAttention": LayerCase(lambda: SharedAttention(2), PAIR),
    "SharedAttention/deep": LayerCase(
        lambda: SharedAttention(2, on_weights=[ReAttention(0.5)], dropout=0.2), PAIR, random=True
    ),
    "AccumulatingAttention": LayerCase(lambda: AccumulatingAttention(2), PAIR),
    "AccumulatingAttention/talking": LayerCase(
        lambda: AccumulatingAttention(
            2,
            on_logits=[HeadMixing(name="mix", use_bias=False)],
            on_weights=[HeadMixing()],
            qkv_bias=False,
        ),
        PAIR,
    ),
    "ClassAttention": LayerCase(lambda: ClassAttention(2), TOKENS, zero_gradients=("k/bias",)),
    "ClassAttention/two": LayerCase(
        lambda: ClassAttention(
            4,
            num_class_tokens=2,
            class_in_keys=False,
            on_logits=[HeadMixing(name="mix")],
            qkv_bias=False,
            dropout=0.1,
        ),
        TOKENS,
        random=True,
        zero_gradients=("mix/bias",),
    ),
    "HeadMixing": LayerCase(lambda: HeadMixing(), MAPS),
    "HeadMixing/no_bias": LayerCase(lambda: HeadMixing(use_bias=False), MAPS),
    "HeadMixing/fewer": LayerCase(lambda: HeadMixing(heads_out=2), MAPS),
    "ReAttention": LayerCase(lambda: ReAttention(), MAPS, float32=True),
    "ReAttention/scaled": LayerCase(lambda: ReAttention(map_scale=0.25), MAPS, float32=True),
    "ReAttention/plain": LayerCase(lambda: ReAttention(normalize=False), MAPS, float32=True),
    "LocalMapConvolution": LayerCase(lambda: LocalMapConvolution(), MAPS),
    "LocalMapConvolution/1": LayerCase(lambda: LocalMapConvolution(kernel_size=1), MAPS),
    "LocalMapConvolution/5": LayerCase(lambda: LocalMapConvolution(kernel_size=5), MAPS),
    "LocalMapConvolution/bias": LayerCase(lambda: LocalMapConvolution(use_bias=True), MAPS),
    "LocalMapConvolution/spatial": LayerCase(
        lambda: LocalMapConvolution(constraint="spatial", grid=[2, 3]), (4, 3, 7)
    ),
    "LocalMapConvolution/row_column": LayerCase(
        lambda: LocalMapConvolution(kernel_size=5, constraint="row+column"), MAPS
    ),
    "Refinement": LayerCase(lambda: Refinement(), MAPS),
    "Refinement/no_reduction": LayerCase(
        lambda: Refinement(expansion=2, kernel_size=5, reduction=False), MAPS
    ),
    "Refinement/spatial": LayerCase(
        lambda: Refinement(expansion=1, constraint="spatial", grid=(1, 4)), MAPS
    ),
    "ResidualRefinement": LayerCase(lambda: ResidualRefinement(), MAPS),
    "ResidualRefinement/scaled": LayerCase(
        lambda: ResidualRefinement(expansion=2, kernel_size=5, map_scale=0.5), MAPS
    ),
    "Temperature": LayerCase(lambda: Temperature(0.5), MAPS),
    "Temperature/learnable": LayerCase(lambda: Temperature(2, learnable=True), MAPS),
    "UniformHeads": LayerCase(lambda: UniformHeads(), MAPS),
    "UniformHeads/two": LayerCase(lambda: UniformHeads(2), MAPS),
    "MLP": LayerCase(lambda: MLP(), TOKENS),
    "MLP/relu": LayerCase(lambda: MLP(2.5, activation="relu", dropout=0.2), TOKENS, random=True),
    "MLP/around": LayerCase(
        lambda: MLP(
            on_input=[ContextBroadcasting()],
            on_hidden=[ContextBroadcasting(scale=0.5)],
            on_output=[LayerScale(0.1)],
            hidden=12,
        ),
        TOKENS,
    ),
    "TokenMixing": LayerCase(lambda: TokenMixing(6), TOKENS),
    "TokenMixing/dropout": LayerCase(lambda: TokenMixing(6, dropout=0.2), TOKENS, random=True),
    "ContextBroadcasting": LayerCase(lambda: ContextBroadcasting(), TOKENS),
    "ContextBroadcasting/max": LayerCase(lambda: ContextBroadcasting("max", halve=False), TOKENS),
    "ContextBroadcasting/class": LayerCase(lambda: ContextBroadcasting("class"), TOKENS),
    "ContextBroadcasting/product": LayerCase(lambda: ContextBroadcasting("class_product"), TOKENS),
    "ContextBroadcasting/both": LayerCase(
        lambda: ContextBroadcasting("class_and_mean", scale=0.5, halve=True), TOKENS
    ),
    "ContextBroadcasting/scaled": LayerCase(
        lambda: ContextBroadcasting(scale=keras.initializers.RandomUniform(0.0, 0.2, seed=1)),
        TOKENS,
    ),
    "SqueezeExcitation": LayerCase(lambda: SqueezeExcitation(), (5, 32)),
    "SqueezeExcitation/ratio": LayerCase(lambda: SqueezeExcitation(ratio=2), TOKENS),
    "LayerScale": LayerCase(lambda: LayerScale(), TOKENS),
    "LayerScale/initializer": LayerCase(
        lambda: LayerScale(keras.initializers.RandomUniform(0.0, 0.2, seed=1)), TOKENS
    ),
    "LayerScale/scalar": LayerCase(lambda: LayerScale(1, scalar=True), TOKENS),
    "DropPath": LayerCase(lambda: DropPath(), TOKENS),
    "DropPath/rate": LayerCase(lambda: DropPath(0.3, seed=7), TOKENS, random=True),
    "PatchEmbedding": LayerCase(lambda: PatchEmbedding(8), (16, 32, 3)),
    "PatchEmbedding/small": LayerCase(lambda: PatchEmbedding(6, patch_size=4), (12, 8, 1)),
    "PatchEmbedding/stride": LayerCase(
        lambda: PatchEmbedding(8, patch_size=4, stride=3), (13, 9, 3)
    ),
    "ConvStem": LayerCase(lambda: ConvStem(8), (16, 32, 3)),
    "ConvStem/three": LayerCase(lambda: ConvStem(6, channels=[4, 5, 6], patch_size=4), (8, 12, 1)),
    "ImagePreprocessing": LayerCase(
        lambda: ImagePreprocessing((6, 8), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], crop_ratio=0.9),
        (9, 14, 3),
        float32=True,
    ),
    "ImagePreprocessing/border": LayerCase(
        lambda: ImagePreprocessing([12, 12], (0.5,), (0.5,), 1.13, "bilinear"),
        (7, 9, 1),
        float32=True,
    ),
    "TokenDownsampling": LayerCase(lambda: TokenDownsampling(16, (3, 4)), (13, 8)),
    "TokenDownsampling/two": LayerCase(
        lambda: TokenDownsampling(8, [2, 2], num_prefix_tokens=2), (6, 8)
    ),
    "PositionEmbedding": LayerCase(lambda: PositionEmbedding((2, 3)), (6, 8)),
    "PositionEmbedding/prefix": LayerCase(
        lambda: PositionEmbedding([2, 3], num_prefix_tokens=2), (8, 8)
    ),
    "ClassToken": LayerCase(lambda: ClassToken(), TOKENS),
    "PatchMap": LayerCase(lambda: PatchMap((2, 2)), TOKENS),
    "TokenPooling": LayerCase(lambda: TokenPooling(), TOKENS),
    "TokenPooling/avg": LayerCase(lambda: TokenPooling("avg", num_prefix_tokens=2), TOKENS),
    "TokenPooling/max": LayerCase(lambda: TokenPooling("max", num_prefix_tokens=0), TOKENS),
    "DistilledHead": LayerCase(lambda: DistilledHead(3), TOKENS, float32=True),
    "DistilledHead/softmax": LayerCase(
        lambda: DistilledHead(3, activation="softmax"), TOKENS, float32=True
    ),
    "DenseHead": LayerCase(lambda: DenseHead(3), TOKENS, float32=True),
    "DenseHead/softmax": LayerCase(
        lambda: DenseHead(3, activation="softmax"), TOKENS, float32=True
    ),
    "Block": LayerCase(lambda: Block(Attention(2), MLP()), TOKENS),
    "Block/talking": LayerCase(
        lambda: Block(
            TalkingHeadsAttention(2, dropout=0.1),
            MLP(2, dropout=0.1),
            layer_scale=keras.initializers.RandomUniform(0.1, 0.5, seed=2),
            drop_path=0.2,
            epsilon=1e-5,
            name="blocks_3",
        ),
        TOKENS,
        random=True,
        zero_gradients=("proj_l/bias",),
    ),
    "Block/scalar": LayerCase(
        lambda: Block(Attention(2), MLP(), layer_scale=0.5, scalar_scale=True), TOKENS
    ),
    "Block/residual_scale": LayerCase(
        lambda: Block(
            DeepAttention(2),
            MLP(on_output=[ContextBroadcasting(), LayerScale(0.5)]),
            residual_scale=0.5,
            epsilon=0.1,
        ),
        TOKENS,
    ),
    "Block/mixing": LayerCase(lambda: Block(TokenMixing(6), MLP()), TOKENS),
    "SharedMapsBlock": LayerCase(
        lambda: SharedMapsBlock(
            SharedAttention(2, on_weights=[ResidualRefinement(map_scale=0.5)]),
            MLP(),
            residual_scale=0.5,
        ),
        PAIR,
    ),
    "SharedMapsBlock/first": LayerCase(
        lambda: SharedMapsBlock(Attention(2), MLP(), receives_maps=False), TOKENS
    ),
    "SharedMapsBlock/uniform": LayerCase(
        lambda: SharedMapsBlock(
            Attention(2, on_weights=[UniformHeads()]), MLP(), receives_maps=False, drop_path=0.2
        ),
        TOKENS,
        random=True,
    ),
    "SharedMapsBlock/last": LayerCase(
        lambda: SharedMapsBlock(AccumulatingAttention(2), MLP(), emits_maps=False, layer_scale=0.5),
        PAIR,
    ),
    "SharedMapsBlock/similarity": LayerCase(
        lambda: SharedMapsBlock(DeepAttention(2), MLP(), similarity=0.1), PAIR
    ),
    "ClassBlock": LayerCase(
        lambda: ClassBlock(ClassAttention(2), MLP(), layer_scale=0.5),
        TOKENS,
        zero_gradients=("k/bias",),
    ),
    "ClassBlock/two": LayerCase(
        lambda: ClassBlock(
            ClassAttention(2, num_class_tokens=2, class_in_keys=False), MLP(), drop_path=0.1
        ),
        TOKENS,
        random=True,
        zero_gradients=("k/bias",),
    ),
}


def tiny(family, **arguments):
    """Return a function that makes a tiny model of a family, with changed arguments."""
    common = {"drop_path": 0.1, "input_shape": (16, 16, 3), "classes": 5, **arguments}
    if family is not kv.PiT:
        common = {"dim": 8, "depth": 2, "patch_size": 8, **common}
    return lambda **changes: family(**{**common, **changes})


def with_classifier(make):
    """Return `make`, with weights in a classifier that starts at 0 (Mixer's)."""

    def made(**arguments):
        model = make(**arguments)
        for variable in model.variables:
            if variable.path.endswith("head/kernel") and not array(variable.value).any():
                variable.assign(numbers(variable.shape, scale=0.02))
        return model

    return made


FAMILIES: dict[str, Callable[..., keras.Model]] = {
    "CaiT": tiny(kv.CaiT, depth=3, num_heads=2, class_depth=1, mlp_ratio=2.0, layer_scale=0.5),
    "ViT": tiny(kv.ViT, num_heads=2),
    "ConViT": tiny(kv.ConViT, num_heads=4, depth=3, local_depth=2),
    "DeepViT": tiny(kv.DeepViT, num_heads=2),
    "RefinedViT": tiny(kv.RefinedViT, num_heads=2, depth=3, expansion=2),
    "CBViT": tiny(kv.CBViT, num_heads=2),
    "PiT": tiny(kv.PiT, dims=(8, 16), depths=(1, 2), num_heads=(2, 4), patch_size=6, stride=5),
    "Mixer": with_classifier(tiny(kv.Mixer)),
}
"""A tiny model of each family."""


def randomized(family, scale=0.5, **changes):
    """Return a tiny model of a family in which every variable affects the output."""
    model = FAMILIES[family](**changes)
    for step in model.layers[1:]:
        randomize(step, scale)
    return model


SIMPLE = ("ViT", "DeepViT", "CBViT", "Mixer")
FAMILIES_HERE = tuple(name for name in FAMILIES if BACKEND == "torch" or name not in SIMPLE)
"""Families for tests that are slow to compile: all of them on PyTorch, elsewhere not those made of
simpler or of the same operations as others.
"""


def blocks(model):
    """Return the blocks of a model, in order."""
    return [step for step in model.layers if isinstance(step, Block)]


def golden(case, family, **arguments):
    """Return a function that makes the model of a golden file, with its weights and changes."""
    common = {
        "dim": 24,
        "depth": 3,
        "num_heads": 4,
        "patch_size": 8,
        "input_shape": (32, 32, 3),
        "classes": 10,
        "classifier_activation": None,
        "weights": GOLDEN / f"{case}.safetensors",
    }
    used = {name: v for name, v in {**common, **arguments}.items() if v is not LEFT_OUT}
    return lambda **changes: family(**used | changes)


LEFT_OUT = object()
GOLDEN_CASES: dict[str, Callable[..., keras.Model]] = {
    "cait": golden("cait", kv.CaiT),
    "convit": golden("convit", kv.ConViT, local_depth=2),
    "deepvit_pure": golden("deepvit_pure", kv.DeepViT),
    "deepvit_s": golden(
        "deepvit_s",
        kv.DeepViT,
        re_attention_depth=2,
        map_scale="head",
        residual_scale=0.5,
        conv_stem=True,
    ),
    "deepvit_l": golden(
        "deepvit_l", kv.DeepViT, re_attention_depth=1, residual_scale=0.5, conv_stem=True
    ),
    "refined_vit": golden("refined_vit", kv.RefinedViT, depth=4),
    "refined_vit_dense": golden("refined_vit_dense", kv.RefinedViT, depth=4, dense_head=True),
    "vit": golden("vit", kv.ViT, num_heads=3),
    "deit_distilled": golden("deit_distilled", kv.ViT, num_heads=3, distillation_token=True),
    "cb_vit": golden("cb_vit", kv.CBViT, num_heads=3),
    "mixer": golden("mixer", kv.Mixer, num_heads=LEFT_OUT),
    "pit": golden(
        "pit",
        kv.PiT,
        dim=LEFT_OUT,
        depth=LEFT_OUT,
        dims=(24, 48),
        depths=(1, 2),
        num_heads=(2, 4),
        stride=7,
    ),
}
"""The model of each golden file, with its weights."""
NO_GOLDEN: dict[str, str] = {}
"""Reason why a family has no golden file, by family, such as "no public code"."""


def numbers(shape, seed=0, scale=1.0):
    """Draw normal numbers, as a NumPy array."""
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def array(tensor):
    """Convert a tensor of any backend and precision to NumPy."""
    # An operation would be compiled for each shape, under JAX.
    return ops.convert_to_numpy(tensor).astype("float32")


def close(found, expected, tolerance=1e-5, message=""):
    """Check that arrays agree to `tolerance` of the largest expected value."""
    found, expected = np.asarray(found, "float64"), np.asarray(expected, "float64")
    assert found.shape == expected.shape, f"{message}: {found.shape}, not {expected.shape}"
    worst = np.abs(found - expected).max(initial=0)
    largest = np.abs(expected).max(initial=0)
    assert worst <= tolerance * largest, f"{message}: off by {worst:.3g}, largest {largest:.3g}"


@contextlib.contextmanager
def precision(policy):
    """Make layers in `policy`."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def randomize(layer, scale=0.5):
    """Randomize every variable so that each affects the output, including those of 0 and 1."""
    for index, variable in enumerate(layer.weights):
        values = numbers(variable.shape, seed=index + 1, scale=scale)
        positive = variable.path.endswith("moving_variance")
        variable.assign(np.abs(values) + 0.5 if positive else values)


def compiled(function):
    """Return `function()`, under JAX compiled as a whole instead of by operation.

    Changes of variables are lost there.
    """
    if BACKEND != "jax":
        return function()
    import jax

    def stateless():
        with keras.StatelessScope():
            return function()

    return jax.jit(stateless)()


def gradients(function, variables):
    """Return the value of `function()` and its gradients by `variables`, as arrays.

    The gradient is zero for a variable on which it doesn't depend.
    """
    variables = list(variables)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = function()
        found = tape.gradient(value, [variable.value for variable in variables])
    elif BACKEND == "jax":
        import jax

        def stateless(values):
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                return function()

        value, found = jax.jit(jax.value_and_grad(stateless))([v.value for v in variables])
    else:
        import torch

        value = function()
        found = [v.value for v in variables]
        found = torch.autograd.grad(value, found, allow_unused=True) if found else []
    return array(value), [
        np.zeros(variable.shape, "float32") if gradient is None else array(gradient)
        for variable, gradient in zip(variables, found, strict=True)
    ]


def takes_training(layer):
    """Whether `call` of a layer has an argument `training`."""
    return "training" in layer.call_signature_parameters


def call(layer, x, training=False):
    """Call a layer, which may have no argument `training`."""
    return layer(x, training=training) if takes_training(layer) else layer(x)


def joined(outputs):
    """Concatenate the tensors of an output, with one row per sample."""
    return ops.concatenate(
        [ops.reshape(part, (part.shape[0], -1)) for part in keras.tree.flatten(outputs)], axis=1
    )


def in_model(case):
    """Return a functional model of only the layer of `case`."""
    inputs = case.inputs(keras.Input)
    return keras.Model(inputs, case.make()(inputs))


def run_python(code, *arguments, backend=BACKEND, check=True):
    """Run `code` in a fresh process; return what it printed."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def outputs(model, x):
    """Return what a model returns for a list of arrays."""
    x = x[0] if len(x) == 1 else x
    # Compiled once for a model and its copies, where each operation would be.
    is_jax = keras.backend.backend() == "jax"
    return model.predict(x, verbose=0) if is_jax else model(x, training=False)


RELOAD = """
import json, pathlib, sys, traceback
import keras_vitx
import keras, numpy as np
from keras_vitx.keras_internals import sublayers

directory = pathlib.Path(sys.argv[1])
for path in sorted(directory.glob("*.keras")):
    base = path.with_suffix("")
    report = {}
    try:
        x = list(np.load(f"{base}.npz").values())

        def run(model):
            y = outputs(model, x)
            parts = [keras.ops.cast(part, "float32") for part in keras.tree.flatten(y)]
            return np.concatenate([keras.ops.convert_to_numpy(part).ravel() for part in parts])

        model = keras.saving.load_model(path)
        report["type"] = type(model).__name__
        report["policies"] = [
            layer.dtype_policy.name
            for layer in sublayers(model)[1:]
            if not isinstance(layer, keras.layers.InputLayer)
        ]
        report["paths"] = [variable.path for variable in model.weights]
        np.save(f"{base}-keras.npy", run(model))
        twin = type(model).from_config(model.get_config())
        twin.load_weights(f"{base}.weights.h5")
        np.save(f"{base}-h5.npy", run(twin))
    except Exception:
        report["error"] = traceback.format_exc()
    pathlib.Path(f"{base}.json").write_text(json.dumps(report))
"""


class Reloading:
    """Models saved here and loaded in a fresh process, one for all of them.

    That process imports `keras_vitx` and none of the code that made the models.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.expected = {}

    def add(self, name, model):
        """Save a model as `.keras` and as `.weights.h5`."""
        base = self._base(name)
        x = [numbers((2, *tensor.shape[1:])) for tensor in model.inputs]
        np.savez(f"{base}.npz", *x)
        model.save(f"{base}.keras")
        model.save_weights(f"{base}.weights.h5")
        y = outputs(model, x)
        self.expected[name] = (
            np.concatenate([array(part).ravel() for part in keras.tree.flatten(y)]),
            type(model).__name__,
            [
                layer.dtype_policy.name
                for layer in sublayers(model)[1:]
                if not isinstance(layer, keras.layers.InputLayer)
            ],
            [variable.path for variable in model.weights],
        )

    def run(self):
        """Load all models in the fresh process."""
        run_python(inspect.getsource(outputs) + RELOAD, self.directory)

    def check(self, name):
        """Check that a loaded model equals the saved one."""
        base = self._base(name)
        report = json.loads(Path(f"{base}.json").read_text())
        assert "error" not in report, report["error"]
        output, kind, policies, paths = self.expected[name]
        assert report["type"] == kind
        assert report["policies"] == policies
        assert report["paths"] == paths
        for form in ("keras", "h5"):
            # In half precision too: the same operations on the same numbers.
            close(np.load(f"{base}-{form}.npy"), output, 1e-6, f"{name}, .{form}")

    def _base(self, name):
        return self.directory / name.replace("/", "-").replace("@", "-")
