"""Every example runs, on a few images."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from examples_runner import run
from harness import BACKEND, ROOT
from PIL import Image

import keras_vitx as kv

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Under TensorFlow, training/test_devices.py covers the other one.
ON_EACH_BACKEND = ("finetune_keras", *(["several_devices"] if BACKEND == "jax" else []))


def test_examples_are_short():
    assert len(EXAMPLES) >= 6
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 80, path
        assert f"python examples/{path.name}" in path.read_text().replace("torchrun", "python")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "path", [p for p in EXAMPLES if p.stem != "predict_with_ray"], ids=lambda path: path.stem
)
def test_example(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(path)
    assert "%" in capsys.readouterr().out


@pytest.mark.skipif(BACKEND == "torch", reason="test_example runs them")
@pytest.mark.parametrize("name", ON_EACH_BACKEND)
def test_example_on_each_backend(name, tmp_path):
    """In a process of its own, which may divide the CPU into devices."""
    runner = ROOT / "tests" / "examples_runner.py"
    process = subprocess.run(
        [sys.executable, str(runner), str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert "test accuracy" in process.stdout
    if name == "several_devices":
        assert f"2 devices on {BACKEND}" in process.stdout
    assert isinstance(keras.saving.load_model(tmp_path / "fashion.keras"), keras.Model)


@pytest.mark.backend_free
def test_prediction_on_two_workers(tmp_path):
    pytest.importorskip("ray")
    parquet = pytest.importorskip("pyarrow.dataset")
    random = np.random.default_rng(0)
    for i in range(5):
        pixels = random.integers(0, 256, (40, 30, 3), "uint8")
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    example = str(ROOT / "examples" / "predict_with_ray.py")
    subprocess.run(
        [sys.executable, example, ".", "features", "--workers", "2", "--batch-size", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    rows = parquet.dataset(tmp_path / "features").to_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [f"{i}.png" for i in range(5)]
    model = kv.CaiT_Mini(weights="cifar10", include_top=False, pooling="avg")
    for row in rows:
        (features,) = model.predict_on_batch(kv.preprocess_input([tmp_path / row["id"]], model))
        assert np.allclose(row["features"], features, atol=1e-4)
