"""benchmarks/exact_claims.py, and pretrained.py on a tiny network and random images."""

import json

import exact_claims
import numpy as np
import pretrained
import pytest
from harness import numbers
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


def images_and_file(path):
    """Random images in the arrays of CIFAR-10."""
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (64, 32, 32, 3), "uint8"), np.arange(64) % 10
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:40], y_test=labels[:40])
    return str(path)


def lose_and_repeat(program, words, lost):
    """Run a program again: what is there is left; a lost result is computed again."""
    lost.unlink()
    times = {path: path.stat().st_mtime_ns for path in lost.parent.glob("*.json")}
    program.main(words)
    assert times.items() <= {p: p.stat().st_mtime_ns for p in lost.parent.glob("*.json")}.items()
    assert lost.exists()


def test_exact_claims():
    for _, _, claim in exact_claims.CLAIMS:
        assert claim() < 1e-6


def test_pretrained_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "TESTED", 40)
    monkeypatch.setattr(pretrained, "MEASURED", 4)
    source, reference, weights = (tmp_path / n for n in ("x.npz", "ref.npz", "w.weights.h5"))
    model = kv.ViT(**pretrained.SMOKE, input_shape=(56, 56, 3), include_top=False)
    model.save_weights(weights)
    images = numbers((2, 56, 56, 3))
    np.savez(reference, x=images, tokens=model.predict(images, verbose=0))

    runs = tmp_path / "runs"
    (tmp_path / "photographs").mkdir()
    Image.effect_noise((90, 60), 50).save(tmp_path / "photographs" / "noise.png")
    own = ["--smoke", "--weights", str(weights), "--reference", str(reference)]
    words = ["compare", "blocks", "probe", "tune", str(runs), *own, "--first", "2", "--seeds", "0"]
    words += ["--cifar10", images_and_file(source), "--images", "64"]
    words += ["--photographs", str(tmp_path / "photographs")]
    words += ["--forms", "float32", "mixed_bfloat16"]
    pretrained.main(words)
    results = {path.stem: json.loads(path.read_text()) for path in runs.glob("*.json")}
    compared = {k: v for k, v in results.items() if k.startswith("compare")}
    (exact,) = (v["difference"] for k, v in compared.items() if "float32" in k)
    assert exact < 1e-5 and len(compared) == 2
    for name in pretrained.VARIANTS:
        result = results[f"tune-{name}-0".replace(",", "").replace(" ", "-")]
        # What starts as the identity changes no output; each starts and trains.
        assert ("own start" in name) == (result["difference_at_start"] > 1e-4)
        assert (name == "plain") == (result["moved"] == 0) and len(result["right"]) == 40
    lose_and_repeat(pretrained, words, runs / "probe.json")
