"""Every example runs, on a few images."""

import os
import subprocess
import sys
from importlib.util import find_spec

import keras
import numpy as np
import pytest
from examples_runner import run
from harness import BACKEND, ROOT
from PIL import Image

import keras_vitx as kv
from keras_vitx.export import FORMATS

LONG = {"refined_bert": 300}
"""tests/examples runs it."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.backend_free
def test_examples_are_short():
    assert len(EXAMPLES) >= 6
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= LONG.get(path.stem, 80), path
        assert f"python examples/{path.name}" in path.read_text().replace("torchrun", "python")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "path",
    [p for p in EXAMPLES if p.stem not in ("predict_with_ray", "exported", "demo", *LONG)],
    ids=lambda path: path.stem,
)
def test_example(path, tmp_path, monkeypatch, capsys):
    if path.stem == "quantize_onnx" and not all(map(find_spec, ("skimage", "onnxruntime"))):
        pytest.skip("scikit-image, whose photographs are used, or ONNX Runtime is not installed")
    monkeypatch.chdir(tmp_path)
    run(path)
    assert "%" in capsys.readouterr().out


@pytest.mark.skipif(BACKEND != "jax", reason="training/test_devices.py covers the others")
def test_several_devices_of_jax(tmp_path):
    """In a process of its own, which divides the CPU into devices."""
    process = subprocess.run(
        [sys.executable, "-m", "examples_runner", str(ROOT / "examples" / "several_devices.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert "2 devices on jax" in process.stdout and "test accuracy" in process.stdout
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


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
def test_exported(format, tmp_path, monkeypatch, capsys):
    """The example prints the model's classes, for each format that this backend writes."""
    if format.backend != BACKEND:
        pytest.skip(f"{format.backend} writes it")
    for package in format.needs:
        pytest.importorskip(package)
    keras.utils.set_random_seed(0)
    model = kv.ViT(16, 1, 2, patch_size=8, input_shape=(24, 32, 3), classes=4)
    model.class_names = ("cat", "dog", "fish", "owl")
    model.preprocessing = model.preprocessing.replace(crop_ratio=1.0)
    for weight in model.weights:
        weight.assign(weight + np.random.normal(0, 0.3, weight.shape).astype("float32"))
    monkeypatch.chdir(tmp_path)
    photograph = Image.fromarray(np.random.randint(0, 256, (24, 32, 3), "uint8"))
    photograph.save("photograph.png")
    file = f"model{format.suffix}"
    kv.export(model, file, format.name, preprocessing=True, verify=False, verbose=False)
    capsys.readouterr()
    run(ROOT / "examples" / "exported.py", file, "photograph.png")
    printed = capsys.readouterr().out
    outputs = model.predict(kv.preprocess_input("photograph.png", model), verbose=0)
    (best,) = kv.decode_predictions(outputs, 3, model)
    assert [line.split() for line in printed.splitlines()] == [
        [name, f"{probability:.1%}"] for _, name, probability in best
    ]
