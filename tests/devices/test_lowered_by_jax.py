"""JAX's training step and inference as a GPU and a TPU would compile them, lowered on a CPU; and
what eight devices send each other in a step.

The conditions of cuDNN's attention are those of an H100; on a TPU, Keras sees a TPU.
"""

import functools
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from devices.zoo import SMALLEST, compiled
from harness import BACKEND, precision, run_python

if BACKEND != "jax":
    pytest.skip("lowered by JAX", allow_module_level=True)

import jax
from jax import numpy as jnp

from keras_vitx.layers.kernels import jax as kernels

CUDNN = {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
BATCH = 8
# At least two blocks of each kind; the others are lowered like them.
BLOCKS = {
    "ConViT": {"depth": 4, "local_depth": 2},
    "RefinedViT": {"depth": 6},
}
WIDTHS = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "ui32": 4, "i8": 1, "i1": 1}


@pytest.fixture
def platform(request, monkeypatch):
    """The platform for which is lowered, which JAX and Keras take for that of this machine."""
    import jax._src.cudnn.fused_attention_stablehlo as cudnn
    from keras.src.backend.jax import nn

    kind = {"cuda": "gpu", "tpu": "tpu"}[request.param]
    seen = SimpleNamespace(**vars(jax))
    seen.devices = lambda *_: [SimpleNamespace(platform=kind)]
    monkeypatch.setattr(jax, "default_backend", lambda: kind)
    monkeypatch.setattr(nn, "jax", seen)
    if kind == "gpu":
        monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
        monkeypatch.setattr(cudnn, "check_compute_capability", lambda least: float(least) <= 9)
        monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)
    kernels.runs_cudnn.cache_clear()
    with precision("mixed_bfloat16"):
        yield request.param
    kernels.runs_cudnn.cache_clear()


def shapes_of(variables):
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]


def made(family, **arguments):
    """Return a model of zeros: to draw its weights takes longer than to lower its step."""
    with keras.StatelessScope(initialize_variables=False):
        model = SMALLEST[family](**BLOCKS.get(family, {"depth": 2}), **arguments)
    keras.utils.clear_session()  # Keras keeps a list of variables without values.
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    return model


@functools.lru_cache(maxsize=1)
def step_of(family):
    """Return the training step of Keras and the shapes of its arguments."""
    model = made(family, drop_path=0.1)
    shape = (BATCH, *model.input_shape[1:])
    batch = np.zeros(shape, "float32"), np.zeros(BATCH, "int32")
    compiled(model)._symbolic_build(data_batch=batch)
    variables = model.trainable_variables, model.non_trainable_variables
    state = *variables, model.optimizer.variables, model.metrics_variables
    return model.train_step, tuple(map(shapes_of, state)), tuple(shapes_of(batch))


def lowered(function, platform, *arguments, **options):
    """Return the jaxpr and the StableHLO."""
    # A new function, because JAX keeps what it has traced, for another platform.
    traced = jax.jit(lambda *inputs: function(*inputs), **options).trace(*arguments)
    return traced.jaxpr, traced.lower(lowering_platforms=(platform,)).as_text()


on_each_platform = pytest.mark.parametrize("platform", ("cuda", "tpu"), indirect=True)


# The others have the operations of these. The family varies slowest: each model is built once.
@on_each_platform
@pytest.mark.parametrize("family", ("ViT", "CaiT", "ConViT", "RefinedViT"))
def test_the_training_step_is_that_of_the_platform(family, platform, caplog):
    step, state, batch = step_of(family)
    caplog.clear()
    _, text = lowered(step, platform, state, batch, donate_argnums=0)
    assert not caplog.messages
    calls = check(text, family, platform)
    donated = re.findall("tf.aliasing_output|jax.buffer_donor", text)
    assert len(donated) >= len(jax.tree.leaves(state))
    assert "inlineable" not in text, "Calls are for CPUs."
    if platform == "cuda" and family in ("ViT", "ConViT"):
        assert calls >= CUDNN


@on_each_platform
@pytest.mark.parametrize(("family", "side"), (("ConViT", 256), ("CaiT", 64)))
def test_inference_is_that_of_the_platform(family, side, platform, caplog):
    """At 256 x 256, ConViT has 256 tokens, for which Keras's kernel for TPUs is causal."""
    model = made(family, input_shape=(side, side, 3))
    variables = map(shapes_of, (model.trainable_variables, model.non_trainable_variables))
    images = jax.ShapeDtypeStruct((BATCH, side, side, 3), jnp.float32)
    infer = functools.partial(model.stateless_call, training=False)
    caplog.clear()
    _, text = lowered(lambda *a: infer(*a)[0], platform, *variables, images)
    assert not caplog.messages
    check(text, family, platform)


def check(text, family, platform):
    """Check for which operations the step calls and which products are in half precision."""
    assert "f64" not in text and "?x" not in text
    calls = set(re.findall(r"custom_call @([\w$]+)", text))
    assert calls <= {"Sharding", "cu_threefry2x32_ffi", *(CUDNN if platform == "cuda" else ())}
    for line in text.splitlines():
        shapes = re.findall(r"tensor<([^>]*)>", line)
        if re.search(r"stablehlo\.(gather|scatter)\W", line):
            assert all(bytes_of(shape) < 1 << 20 for shape in shapes), line
        if "stablehlo.dot_general" in line:
            factors = shapes[-3:-1]
            # An algorithm names what float32 inputs are rounded to.
            in_half = all(shape.endswith("bf16") for shape in factors)
            in_half = in_half or "lhs_precision_type = bf16" in line
            # Not the head, the mixes before a normalization at inference, and ConViT's positions.
            is_big = min(map(bytes_of, factors)) > 1 << 20 and "1000" not in line
            assert in_half or not is_big, line
    return calls


def bytes_of(shape):
    *sizes, kind = shape.split("x")
    return int(np.prod([int(size) for size in sizes if size])) * WIDTHS.get(kind, 4)


@pytest.mark.parametrize("platform", ["cuda"], indirect=True)
def test_float16_for_one_query_names_no_algorithm_of_products(platform):
    """XLA has none for it on a GPU: "Unsupported dot precision algorithm"."""
    query, key = (jax.ShapeDtypeStruct((2, n, 2, 32), "float16") for n in (1, 49))

    def total(query, key):
        return kernels.fused_attention(query, key, key, training=True).astype("float32").sum()

    traced = jax.jit(jax.grad(total, argnums=(0, 1))).trace(query, key)
    assert "algorithm" not in traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture(scope="module")
def measured():
    """What the script prints: choice, family, and what was found."""
    script = Path(__file__).with_name("virtual_devices.py")
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = run_python(script, XLA_FLAGS=flags)
    return list(map(json.loads, done.stdout.splitlines()))


def test_copies_of_the_model_reduce_gradients_only(measured):
    for _, family, found in (row for row in measured if row[0] == "data"):
        assert set(found["collectives"]) == {"all-reduce"}, family
        # Statistics of normalizations and the loss are a few numbers.
        assert found["collectives"]["all-reduce"][1] < 1.02 * found["weights"] + 4096, family


def test_sharded_weights_travel_and_activations_do_not(measured):
    (found,) = (found for choice, _, found in measured if choice == "shards")
    sent = found["collectives"]
    assert set(sent) <= {"all-gather", "all-reduce", "reduce-scatter"}
    # Forward and backward; the loop is written once for all of its blocks.
    assert sent["all-gather"][1] < 2 * found["weights"]
    assert sent["all-reduce"][1] < 1.02 * found["weights"] + 4096
    # The rest are biases and norms of these small models.
    assert max(found["share"]) < 0.5
