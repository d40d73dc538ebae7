"""benchmarks/pretrained.py on a tiny random network and random images, and its report."""

import importlib
import json

import numpy as np
import pytest
from harness import ROOT
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("pretrained")
    monkeypatch.setattr(program, "TESTED", 40)
    monkeypatch.setattr(program, "MEASURED", 4)
    return program, importlib.import_module("pretrained_report")


def test_results_and_report(programs, tmp_path, capsys):
    program, report = programs
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (64, 32, 32, 3), "uint8"), np.arange(64) % 10
    source, reference, weights = (tmp_path / n for n in ("x.npz", "ref.npz", "w.weights.h5"))
    np.savez(source, x_train=pixels, y_train=labels, x_test=pixels[:40], y_test=labels[:40])
    model = kv.ViT(**program.SMOKE, input_shape=(56, 56, 3), include_top=False)
    model.save_weights(weights)
    images = random.standard_normal((2, 56, 56, 3)).astype("float32")
    np.savez(reference, x=images, tokens=model.predict(images, verbose=0))

    runs, page = tmp_path / "runs", tmp_path / "page.md"
    words = ["compare", "blocks", "probe", "tune", str(runs), "--smoke", "--weights", str(weights)]
    words += ["--reference", str(reference), "--cifar10", str(source), "--first", "2"]
    words += ["--images", "64", "--seeds", "0", "--forms", "float32", "mixed_bfloat16"]
    program.main(words)
    results = {path.stem: json.loads(path.read_text()) for path in runs.glob("*.json")}
    compared = {k: v for k, v in results.items() if k.startswith("compare")}
    (exact,) = (v["difference"] for k, v in compared.items() if "float32" in k)
    assert exact < 1e-5 and len(compared) == 2
    for name in program.VARIANTS:
        result = results[f"tune-{name}-0".replace(",", "").replace(" ", "-")]
        # What starts as the identity changes no output; each starts and trains.
        assert ("own start" in name) == (result["difference_at_start"] > 1e-4)
        assert (name == "plain") == (result["moved"] == 0) and len(result["right"]) == 40

    # What is there is left; a lost result is computed again.
    (runs / "probe.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    program.main(words)
    assert times.items() <= {p: p.stat().st_mtime_ns for p in runs.glob("*.json")}.items()
    assert (runs / "probe.json").exists()

    page.write_text("| photographs | 1 | 2 | 3 | random |\n|---|\n| old | 0 |\n\nend\n")
    capsys.readouterr()
    command = [str(runs), str(page), "--smoke", "--weights", str(weights)]
    report.main([*command, "--reference", str(reference), "--pictures", str(tmp_path)])
    assert "| entropy |" in page.read_text() and "old" not in page.read_text()
    assert page.read_text().endswith("|\n\nend\n")
    assert "| re-attention, identity | " in capsys.readouterr().out
    for name in report.PICTURES:
        with Image.open(tmp_path / f"real-{name}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 5
