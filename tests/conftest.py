import gc
import os
import random
import sys
import tempfile
import types
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# JAX compiles each operation per shape; the cache serves subprocesses and the next run.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "keras_vitx-tests-jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Compiling without optimization takes a third of the time, and without the emitters of fusions
# in MLIR a third of that; models here run a few times each. With XLA_FLAGS="" in the environment,
# code is compiled as users have it; other flags there are added.
if os.environ.get("XLA_FLAGS") != "":
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    # XLA stops at a flag that it does not know, as JAX 0.12's this one.
    jaxlib = version("jaxlib") if find_spec("jaxlib") else "0"
    if tuple(map(int, jaxlib.split(".")[:2])) < (0, 11):
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"

import keras
import numpy as np
import pytest
from hypothesis import settings

# The same examples everywhere, each as slow as it is; a failing one is added as an `@example`.
settings.register_profile("tests", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("tests")


def pytest_sessionstart(session):
    """Stop if the run would test a backend other than the requested one."""
    asked = os.environ.get("KERAS_BACKEND")
    if asked and asked != keras.backend.backend():
        pytest.exit(f"KERAS_BACKEND={asked}, but Keras runs on {keras.backend.backend()}", 3)


def pytest_collection_finish(session):
    """Leave out of later collections what is imported; Keras collects once per quantized layer."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def timm():
    """timm, with torchvision's Python part only: its operators may not match torch."""
    pytest.importorskip("torch")
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, types.ModuleType(name))
    pytest.importorskip("torchvision")
    return pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Seed every test; keras.random draws its seeds from `random`."""
    random.seed(0)
    np.random.seed(0)
    yield
    assert keras.config.dtype_policy().name == "float32", "a test left another precision behind"


@pytest.fixture(scope="session")
def classifier():
    """A tiny ViT, which no test changes."""
    from harness import FAMILIES

    return FAMILIES["ViT"]()


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """Random weights in place of the hub's."""
    import keras_vitx as kv
    from keras_vitx.weights import checkpoints_of, save_safetensors

    made = {}

    def download(address):
        (known,) = (c for c in checkpoints_of(None) if c.source == f"hf://{address.repository}")
        if known.name not in made:
            side = known.image_size
            model = kv.create_model(known.constructor, input_shape=(side, side, 3))
            made[known.name] = tmp_path / f"{known.name}.safetensors"
            save_safetensors(model, made[known.name])
        return made[known.name]

    # A function of the package shadows the module.
    monkeypatch.setattr(sys.modules["keras_vitx.weights.load"], "download", download)
    return made


@pytest.fixture
def empty(tmp_path):
    """A directory into which nothing may be written."""
    yield tmp_path
    assert not list(tmp_path.iterdir())


@pytest.fixture
def write_pictures(tmp_path, monkeypatch):
    """A function that writes pictures of noise, by their paths, into a new working directory."""
    monkeypatch.chdir(tmp_path)

    from harness import save_picture

    def write(*names):
        noise = np.random.default_rng(0)
        for path in map(tmp_path.joinpath, names):
            save_picture(path, noise.integers(0, 256, (60, 80, 3), "uint8"))

    return write
