"""A tiny model of every family, the models of the golden files, and checks.

Families are enrolled by the example in their docstring; a new golden file needs a row in
`GOLDEN_CASES`. tests/layers/cases.py has the layers.
"""

import contextlib
import doctest
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops
from PIL import Image

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import Block
from keras_vitx.weights import save_safetensors, to_checkpoint

TESTS = Path(__file__).parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
BACKEND = keras.backend.backend()
BACKENDS = ("tensorflow", "jax", "torch")
MIXED = ("mixed_bfloat16", "mixed_float16")


def tiny(family):
    """Return a function that makes the model of a family's docstring, with changed arguments."""
    name = family.__name__
    example, *_ = doctest.DocTestParser().get_examples(family.__doc__)
    given = eval(example.source, {"kv": SimpleNamespace(**{name: dict})})
    given |= {"drop_path": 0.1, "classes": 5}

    def make(**changes):
        model = family(**given | changes)
        for variable in model.variables:
            # Mixer's classifier starts at 0.
            if variable.path.endswith("head/kernel") and not array(variable.value).any():
                variable.assign(numbers(variable.shape, scale=0.02))
        return model

    return make


FAMILIES: dict[str, Callable[..., keras.Model]] = {}
"""A tiny model of each family, from the example in its docstring."""
WITHOUT_EXAMPLE: dict[str, str] = {}
"""What is wrong with the example of the others."""
for _name, _family in kv.models.build.FAMILIES.items():
    try:
        FAMILIES[_name] = tiny(_family)
    except Exception as error:
        WITHOUT_EXAMPLE[_name] = f"{type(error).__name__}: {error}"


def randomized(family, scale=0.5, **changes):
    """Return a tiny model of a family in which every variable affects the output."""
    model = FAMILIES[family](**changes)
    for step in model.layers[1:]:
        randomize(step, scale)
    return model


SIMPLE = ("ViT", "DeepViT", "CBViT", "Mixer")
FAMILIES_HERE = {name for name in FAMILIES if BACKEND == "torch" or name not in SIMPLE}
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
    "deit3": golden("deit3", kv.ViT, num_heads=3, layer_scale=1e-6, class_position=False),
    "dinov2": golden(
        "dinov2", kv.ViT, num_heads=3, layer_scale=1e-5, class_position=False, register_tokens=4
    ),
    "siglip": golden("siglip", kv.ViT, num_heads=3, class_token=False, attention_pooling=True),
    "clip": golden(
        "clip",
        kv.ViT,
        num_heads=3,
        activation="quick_gelu",
        pre_norm=True,
        patch_bias=False,
        epsilon=1e-5,
    ),
    "gap": golden(
        "gap",
        kv.ViT,
        num_heads=3,
        class_token=False,
        class_position=False,
        register_tokens=2,
        layer_scale=1e-5,
        mean_pooling=True,
    ),
    "aimv2": golden(
        "aimv2",
        kv.ViT,
        num_heads=3,
        mlp_ratio=3.0,
        class_token=False,
        gated_mlp=True,
        qkv_bias=False,
        proj_bias=False,
        norm="rms",
        patch_norm=True,
        epsilon=1e-5,
    ),
    "beit3": golden(
        "beit3", kv.ViT, num_heads=3, heads_norm=True, mlp_norm=True, mean_pooling=True
    ),
    "beit": golden("beit", kv.BEiT, num_heads=3, mean_pooling=True),
    "pe_core": golden(
        "pe_core",
        kv.RotaryViT,
        num_heads=3,
        rotary={"temperature": 1e4, "order": "xy", "reference_grid": (6, 6), "offset": 1.0},
        positions="tokens",
        layer_scale=None,
        attention_pooling=4,
        pre_norm=True,
        patch_bias=False,
    ),
    "rope_vit": golden(
        "rope_vit", kv.RotaryViT, num_heads=3, rotary={"order": "xy"}, positions="patches"
    ),
    "dinov3": golden(
        "dinov3",
        kv.RotaryViT,
        num_heads=3,
        rotary={"halves": True, "centered": True},
        qkv_bias=False,
        register_tokens=4,
        epsilon=1e-5,
    ),
    "eva02": golden(
        "eva02",
        kv.RotaryViT,
        num_heads=3,
        rotary={"temperature": 1e4, "reference_grid": (6, 6)},
        mlp_ratio=8 / 3,
        gated_mlp=True,
        qkv_bias="qv",
        positions="tokens",
        layer_scale=None,
        mean_pooling=True,
    ),
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


def numbers(shape, seed=0, scale=1.0):
    """Draw normal numbers, as a NumPy array."""
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def picture(height, width, channels=3, seed=0):
    """Draw a photo-like uint8 image: smooth shading, edges and some noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = []
    for _ in range(channels):
        a, b, c = random.uniform(2, 20, 3)
        plane = 110 + 60 * np.sin(a * x + b * y) + 40 * ((x - 0.4) ** 2 + y**2 < c / 60)
        planes.append(plane + random.normal(0, 12, plane.shape))
    return np.clip(np.stack(planes, axis=-1), 0, 255).astype("uint8")


def pictures(n):
    """Draw images (n, 20, 24, 3), and their classes, 0 to 3."""
    return np.stack([picture(20, 24, seed=i) for i in range(n)]), np.arange(n) % 4


def save_picture(path, pixels, **options):
    """Write pixels as an image file, and the directories above it; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    Image.fromarray(pixels).save(path, **options)
    return path


def stand_in(size=(16, 16), channels=3, classes=4, **preprocessing):
    """Return what data/ reads of a model, without a model."""
    preprocessing = {"mean": [0.5] * channels, "std": [0.25] * channels} | preprocessing
    return SimpleNamespace(
        input_shape=(None, *size, channels),
        output_shape=(None, classes),
        preprocessing=preprocessing,
    )


def of_each(call, inputs):
    """Return rows of a table of errors: the words, and the call of what a function can't take."""
    return {words: partial(call, given) for words, given in inputs.items()}


def array(tensor):
    """Convert a tensor of any backend and precision to NumPy."""
    # An operation would be compiled for each shape, under JAX.
    return ops.convert_to_numpy(tensor).astype("float32")


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def same_weights(one, other, but="\0"):
    """Check that the weights of two models are equal, except paths that start with `but`."""
    one, other = ([v for v in each.weights if not v.path.startswith(but)] for each in (one, other))
    assert one
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(array(ours.value), array(theirs.value), err_msg=ours.path)


def save_torch(model, path):
    """Write a model's weights as PyTorch does."""
    import torch

    torch.save({name: torch.tensor(one) for name, one in to_checkpoint(model).items()}, path)


FORMATS = {
    ".safetensors": save_safetensors,
    ".pth": save_torch,
    ".weights.h5": keras.Model.save_weights,
    ".keras": keras.Model.save,
}
"""Functions that write the weights of a model, by suffix."""


def save(model, path):
    """Write a model in the format of the path's suffix; return the path."""
    if path.suffix == ".pth":
        pytest.importorskip("torch")
    (write,) = [FORMATS[end] for end in FORMATS if path.name.endswith(end)]
    write(model, path)
    return path


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
        with keras.StatelessScope(collect_losses=True):
            return function()

    return jax.jit(stateless)()


def gradients(function, variables):
    """Return the value of `function()` and its gradients by `variables`, as arrays.

    Of several values, the gradients are those of the first. The gradient is zero for a variable on
    which it doesn't depend.
    """
    variables = list(variables)

    def first(value):
        return value[0] if isinstance(value, tuple) else value

    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = function()
        found = tape.gradient(first(value), [variable.value for variable in variables])
    elif BACKEND == "jax":
        import jax

        def stateless(values):
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                value = function()
                return first(value), value

        step = jax.jit(jax.value_and_grad(stateless, has_aux=True))
        (_, value), found = step([variable.value for variable in variables])
    else:
        import torch

        value = function()
        found = [v.value for v in variables]
        found = torch.autograd.grad(first(value), found, allow_unused=True) if found else []
    return keras.tree.map_structure(array, value), [
        np.zeros(variable.shape, "float32") if gradient is None else array(gradient)
        for variable, gradient in zip(variables, found, strict=True)
    ]


def trained(model):
    """Compile `model`, train it on one batch of 16 x 16 images twice and return its losses."""
    # Under PyTorch, stochastic depth draws from its own generator.
    keras.utils.set_random_seed(0)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    data = numbers((4, 16, 16, 3)), np.arange(4)
    return model.fit(*data, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]


def call(layer, x, training=False):
    """Call a layer, which may have no argument `training`."""
    takes_training = "training" in layer.call_signature_parameters
    return layer(x, training=training) if takes_training else layer(x)


def joined(outputs):
    """Concatenate the tensors of an output, with one row per sample."""
    return ops.concatenate(
        [ops.reshape(part, (part.shape[0], -1)) for part in keras.tree.flatten(outputs)], axis=1
    )


def run_python(code, *arguments, backend=BACKEND, check=True, **environment):
    """Run `code`, or the script of a path, in a fresh process; return what it printed."""
    start = [code] if isinstance(code, Path) else ["-c", code]
    ours = {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        env={**os.environ, **ours, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def facts(model, x):
    """Return what a model gives for a list of arrays, and its class, policies and paths."""
    x = x[0] if len(x) == 1 else x
    # Compiled once for a model and its copies, where each operation would be.
    is_jax = keras.backend.backend() == "jax"
    y = keras.tree.flatten(model.predict(x, verbose=0) if is_jax else model(x, training=False))
    parts = [keras.ops.convert_to_numpy(keras.ops.cast(part, "float32")).ravel() for part in y]
    policies = [
        layer.dtype_policy.name
        for layer in sublayers(model)[1:]
        if not isinstance(layer, keras.layers.InputLayer)
    ]
    paths = [variable.path for variable in model.weights]
    return np.concatenate(parts), [type(model).__name__, policies, paths]


RELOAD = """
import pathlib, pickle, sys, traceback
import keras_vitx
import keras, numpy as np
from keras_vitx.keras_internals import sublayers

found = {}
for path in pathlib.Path(sys.argv[1]).glob("*.keras"):
    base = path.with_suffix("")
    try:
        x = list(np.load(f"{base}.npz").values())
        model = keras.saving.load_model(path)
        twin = type(model).from_config(model.get_config())
        twin.load_weights(f"{base}.weights.h5")
        found[base.name] = facts(model, x), facts(twin, x)
    except Exception:
        found[base.name] = traceback.format_exc()
pathlib.Path(sys.argv[1], "found").write_bytes(pickle.dumps(found))
"""


class Reloading:
    """Models saved here and loaded in a fresh process, one for all of them.

    That process imports `keras_vitx` and none of the code that made the models.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.expected = {}

    def add(self, name, model, x=None):
        """Save a model as `.keras` and as `.weights.h5`."""
        base = self.directory / name
        x = x or [numbers((2, *tensor.shape[1:])) for tensor in model.inputs]
        np.savez(f"{base}.npz", *x)
        model.save(f"{base}.keras")
        model.save_weights(f"{base}.weights.h5")
        self.expected[name] = facts(model, x)

    def run(self):
        """Load all models in the fresh process."""
        run_python(inspect.getsource(facts) + RELOAD, self.directory)
        self.found = pickle.loads((self.directory / "found").read_bytes())

    def check(self, name):
        """Check that a loaded model equals the saved one."""
        assert isinstance(self.found[name], tuple), self.found[name]
        output, report = self.expected[name]
        for found, found_report in self.found[name]:
            assert found_report == report
            # In half precision too: the same operations on the same numbers.
            close(found, output, 1e-6, name)
