"""Every example runs, on a few images."""

import http.server
import re
import runpy
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import keras
import numpy as np
import pytest
from examples_runner import run
from harness import BACKEND, ROOT, run_python
from PIL import ExifTags, Image

import keras_vitx as kv
from keras_vitx.export import FORMATS

LONG = {"refined_bert": 310}
"""tests/examples runs it."""
HAVE_TESTS = {"predict_with_ray", "exported", "serve_fastapi", "tensorflow_serving"}
HAVE_TESTS |= {"real_labels", "zero_shot", *LONG}
"""They need arguments or clients, and have tests of their own."""
PROGRAMS = sorted({path.stem for path in (ROOT / "examples").glob("*.py")} - HAVE_TESTS)
PROGRAMS += ["segmentation/train"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WEB = ROOT / "build" / "npm" / "onnxruntime-web" / "dist"


@pytest.mark.backend_free
def test_examples_are_short():
    for path in (ROOT / "examples").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= LONG.get(path.stem, 80), path


@pytest.mark.backend_free
@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name, tmp_path, monkeypatch, capsys):
    if name == "quantize_onnx" and not all(map(find_spec, ("skimage", "onnxruntime"))):
        pytest.skip("scikit-image, whose photographs are used, or ONNX Runtime is not installed")
    monkeypatch.chdir(tmp_path)
    run(ROOT / "examples" / f"{name}.py")
    assert "%" in capsys.readouterr().out


@pytest.mark.backend_free
def test_prediction_on_two_workers(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    parquet = pytest.importorskip("pyarrow.dataset")
    for i in range(5):
        photograph(tmp_path / f"{i}.png", (40, 30))
    (tmp_path / "broken.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    words = ".", "features", "--workers", 2, "--batch-size", 2
    run_python(ROOT / "examples" / "predict_with_ray.py", *words)
    rows = parquet.dataset(tmp_path / "features").to_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [f"{i}.png" for i in range(5)]
    model = kv.CaiT_Mini(weights="cifar10", include_top=False, pooling="avg")
    for row in rows:
        (features,) = model.predict_on_batch(kv.preprocess_input([tmp_path / row["id"]], model))
        assert np.allclose(row["features"], features, atol=1e-4)


def small_model():
    """Return a classifier of images of 24 x 32 pixels, cut from the middle, with four names."""
    keras.utils.set_random_seed(0)
    model = kv.ViT(16, 1, 2, patch_size=8, input_shape=(24, 32, 3), classes=4)
    model.class_names = ("cat", "dog", "fish", "owl")
    model.preprocessing = model.preprocessing.replace(crop_ratio=1.0)
    for weight in model.weights:
        weight.assign(weight + np.random.normal(0, 0.3, weight.shape).astype("float32"))
    return model


def photograph(path, size=(40, 50)):
    """Write smooth noise, which JPEG keeps."""
    Image.fromarray(np.random.randint(0, 256, (4, 5, 3), "uint8")).resize(size[::-1]).save(path)
    return path


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
def test_exported(format, tmp_path, monkeypatch, capsys):
    """The example prints the model's classes, for each format that this backend writes."""
    if format.backend != BACKEND:
        pytest.skip(f"{format.backend} writes it")
    for package in format.packages:
        pytest.importorskip(package)
    model = small_model()
    monkeypatch.chdir(tmp_path)
    photograph("photograph.png", (24, 32))
    exported = kv.export(model, f"model{format.suffix}", format.name, preprocessing=True)
    (tmp_path / "classes.txt").write_text("\n".join(exported.classes))
    capsys.readouterr()
    run(ROOT / "examples" / "exported.py", exported.path, "photograph.png")
    printed = capsys.readouterr().out
    outputs = model.predict(kv.preprocess_input("photograph.png", model), verbose=0)
    (best,) = kv.decode_predictions(outputs, 3, model)
    assert [line.split() for line in printed.splitlines()] == [
        [name, f"{probability:.1%}"] for _, name, probability in best
    ]


@pytest.mark.backend_free  # test_predictor.py has threads of every backend.
def test_fastapi(tmp_path):
    """Eight clients at once get what one thread gets; what is no image is their error."""
    for package in ("uvicorn", "python_multipart"):
        pytest.importorskip(package)
    testclient = pytest.importorskip("fastapi.testclient")
    predictor = kv.predictor(small_model(), batch_sizes=(1,))
    files = [photograph(tmp_path / f"{i}.jpg", (40, 30 + i)) for i in range(8)]
    expected = [
        [{"class": name, "probability": p} for _, name, p in predictor(file, top=3)[0]]
        for file in files
    ]
    app = runpy.run_path(str(ROOT / "examples" / "serve_fastapi.py"))["server"](predictor)
    client = testclient.TestClient(app)

    def upload(content):
        return client.post("/classify?top=3", files={"photograph": content})

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(upload, [file.read_bytes() for file in files] * 4))
    assert [answer.json()["classes"] for answer in found] == expected * 4
    assert upload(b"no image").status_code == 422


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow writes it")
def test_tensorflow_serving(tmp_path):
    """Files of several sizes in one batch have the model's probabilities."""
    import tensorflow as tf

    model = small_model()
    exported = kv.export(model, tmp_path / "exported", preprocessing=True)
    example = runpy.run_path(str(ROOT / "examples" / "tensorflow_serving.py"))
    example["prepare"](exported.path, tmp_path / "1")
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    files = [photograph(tmp_path / "a.jpg"), photograph(tmp_path / "b.png", (30, 60))]
    found = serve(image_bytes=tf.constant([file.read_bytes() for file in files]))["probabilities"]
    live = model.predict(kv.preprocess_input(files, model), verbose=0)
    assert np.allclose(found, live, atol=1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch writes ONNX")
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.skipif(not WEB.exists(), reason="ONNX Runtime Web is missing: make build/npm")
def test_browser(tmp_path):
    """The page shows the model's probabilities of a photograph that was taken upright."""
    pytest.importorskip("onnxscript")
    model, site = small_model(), tmp_path / "site"
    shutil.copytree(ROOT / "examples" / "browser", site)
    for name in ("ort.wasm.min.js", *map("ort-wasm-simd-threaded.{}".format, ("mjs", "wasm"))):
        shutil.copy(WEB / name, site)
    exported = kv.export(model, site / "model.onnx", preprocessing=True)
    (site / "classes.txt").write_text("\n".join(exported.classes))
    file = photograph(site / "photograph.jpg")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.open(file).save(file, exif=exif)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=site)
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000"]
    command += [f"http://localhost:{server.server_port}/index.html?photograph=photograph.jpg"]
    dumped = subprocess.check_output(command, text=True, timeout=120)
    rows = re.findall(r'<td>(\w+)</td><td title="([\d.e-]+)">([\d.]+ %)</td>', dumped)
    ((*best,),) = kv.predictor(model)(file)
    assert [(name, shown) for name, _, shown in rows] == [
        (name, f"{100 * probability:.1f} %") for _, name, probability in best
    ]
    assert np.allclose([float(row[1]) for row in rows], [p for *_, p in best], atol=1e-5)
