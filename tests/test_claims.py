"""benchmarks/claims.py on tiny networks and random images, and its report."""

import importlib
import json

import numpy as np
import pytest
from harness import ROOT
from PIL import Image

pytestmark = pytest.mark.backend_free


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    claims = importlib.import_module("claims")
    monkeypatch.setattr(claims, "FRACTIONS", (0.5, 1.0))
    report = importlib.reload(importlib.import_module("claims_report"))
    return claims, report


def test_runs_and_report(programs, tmp_path, capsys):
    claims, report = programs
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (40, 32, 32, 3), "uint8"), np.arange(40) % 10
    source = tmp_path / "images.npz"
    np.savez(source, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    words = [str(source), str(tmp_path / "runs"), "--smoke", "--seeds", "1"]
    claims.main(words)
    results = sorted((tmp_path / "runs").glob("*.json"))  # CB-ViT and CaiT-24 come first.
    assert len(results) == len(claims.runs(1)) == 8 + 2
    whole = {path: json.loads(path.read_text()) for path in results}
    for result in whole.values():
        assert set(result["measures"]) == set(claims.MEASURES)
        assert 0 <= result["accuracy"] <= 1
    assert sum("perturbed" in result for result in whole.values()) == 2

    # What is there is left; a lost result is measured again, with the network that is there.
    results[0].unlink()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.[kj]*")}
    claims.main(words)
    assert times.items() <= {path: path.stat().st_mtime_ns for path in times}.items()
    again = json.loads(results[0].read_text())
    assert again["measures"] == whole[results[0]]["measures"]

    capsys.readouterr()
    report.main([str(tmp_path / "runs"), str(tmp_path / "figures")])
    out = capsys.readouterr().out
    accuracy = 100 * whole[tmp_path / "runs" / "DeepViT-24-1-0.json"]["accuracy"]
    assert f" {accuracy:.{1 if accuracy >= 5 else 2}f} (" in out.split("| DeepViT-24 |")[1]
    figures = sorted((tmp_path / "figures").glob("claims-*.png"))
    assert len(figures) == 7
    for path in figures:
        with Image.open(path) as picture:
            assert np.asarray(picture.convert("L")).std() > 5

    results[1].write_text(results[1].read_text().replace("0.002", "0.003"))
    with pytest.raises(SystemExit, match="has other settings"):
        claims.main(words)
    (tmp_path / "runs" / "DeepViT-24-1-0.json").unlink()
    capsys.readouterr()
    report.main([str(tmp_path / "runs"), str(tmp_path / "figures")])
    *tables, last = capsys.readouterr().out.strip().splitlines()
    assert last == "No result yet: DeepViT-24-1-0."
    assert any("CB-ViT" in line for line in tables)
    assert not any("DeepViT" in line for line in tables)
