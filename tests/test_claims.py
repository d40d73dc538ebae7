"""benchmarks/claims.py on tiny networks and random images, its page, and the exact claims."""

import importlib
import json

import numpy as np
import pytest
from harness import ROOT
from PIL import Image

pytestmark = pytest.mark.backend_free
DESIGNS = ("entropy", "frozen", "gates", "frontier")


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return [importlib.import_module(name) for name in ("claims", "claims_report", "exact_claims")]


def test_runs_and_page(programs, tmp_path):
    claims, report, _ = programs
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (40, 32, 32, 3), "uint8"), np.arange(40) % 10
    source, directory = tmp_path / "images.npz", tmp_path / "runs"
    np.savez(source, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    words = [str(source), str(directory), "--smoke", "--seeds", "1", "--designs", *DESIGNS]
    claims.main(words)
    runs = claims.runs(DESIGNS, 1)
    results = {run: json.loads(run.path(directory, ".json").read_text()) for run in runs}
    assert len(results) == 2 + 2 + 1 + 2 * len(claims.RATES)
    for run, result in results.items():
        assert 0 <= result["accuracy"] <= 1
        assert set(claims.MEASURES) < set(result["measures"]) == set(result["step_0"])
        assert bool(result["dynamics"]) == run.network.startswith("ConViT")
        assert ("perturbed" in result) == (run in claims.DESIGNS["entropy"])

    # What is there is left; a lost result is trained again, to the same numbers.
    first, *others = (run.path(directory, ".json") for run in runs)
    first.unlink()
    times = {path: path.stat().st_mtime_ns for path in others}
    claims.main(words)
    assert times == {path: path.stat().st_mtime_ns for path in others}
    assert json.loads(first.read_text())["measures"] == results[runs[0]]["measures"]

    page, figures = tmp_path / "page.md", tmp_path / "figures"
    report.main([str(directory), str(page), str(figures)])
    text = page.read_text()
    gain = report.difference(report.mean_of("entropy"), *claims.DESIGNS["entropy"])
    assert f"| {gain(results.__getitem__):+.2f} | one seed | no power |" in text
    assert "Sharing maps with the next blocks (Refiner, Table 13) |  |  | not run |" in text
    for path in (figures / "claims-entropy.png", figures / "claims-gates.png"):
        with Image.open(path) as picture:
            assert np.asarray(picture.convert("L")).std() > 5

    others[0].write_text(others[0].read_text().replace("0.002", "0.003"))
    with pytest.raises(SystemExit, match="has other settings"):
        claims.main(words)


@pytest.mark.parametrize(
    ("numbers", "margin", "expected"),
    [
        ((1.0, 1.2, 0.9), None, "shows"),
        ((-1.0, -1.2, -0.9), None, "contradicts"),
        ((1.0, -1.2, 0.9), None, "no power"),
        ((0.1, -0.1, 0.05), 1.0, "shows"),
        ((3.0, 3.1, 2.9), 1.0, "contradicts"),
        ((0.5, 1.5, 0.9), 1.0, "no power"),
        ((5.0,), None, "no power"),
    ],
)
def test_verdicts(programs, numbers, margin, expected):
    claims, report, _ = programs
    (run,) = claims.DESIGNS["gates"]
    claim = report.Claim("", "", "gates", "", {}, lambda of: of(run), margin)
    assert report.verdict(claim, [{run: number} for number in numbers])[-1] == expected


@pytest.mark.parametrize(
    ("failed", "expected"), [((9, 0), "shows"), ((0, 9), "contradicts"), ((2, 1), "no power")]
)
def test_failures(programs, failed, expected):
    claims, report, _ = programs
    runs = claims.DESIGNS["frontier"]
    found = []
    for seed in range(3):
        results = {}
        for network, count in zip(("ViT-24", "ViT-24 LayerScale"), failed, strict=True):
            own = [run for run in runs if run.network == network]
            for index, run in enumerate(own):
                accuracy = 0.1 if seed * len(own) + index < count else 0.4
                results[run] = {"accuracy": accuracy}
        found.append(results)
    claim = next(claim for claim in report.CLAIMS if claim.failures)
    text, _, found = report.verdict(claim, found)
    assert (
        found == expected
        and text
        == f"{failed[0]} of {3 * len(claims.RATES)}, {failed[1]} of {3 * len(claims.RATES)}"
    )


def test_exact_claims(programs):
    *_, exact = programs
    for _, _, claim in exact.CLAIMS:
        assert claim() < 1e-6
