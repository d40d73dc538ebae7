"""benchmarks/claims.py and pretrained.py on tiny networks and random images, and their pages."""

import json

import claims
import claims_report as report
import exact_claims
import numpy as np
import pretrained
import pretrained_report
import pytest
from harness import numbers
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free
DESIGNS = ("entropy", "frozen", "gates")


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


def assert_drawn(path):
    with Image.open(path) as picture:
        assert np.asarray(picture.convert("L")).std() > 5


def test_the_runs_of_claims_and_their_page(tmp_path):
    source, directory = images_and_file(tmp_path / "images.npz"), tmp_path / "runs"
    words = [source, str(directory), "--smoke", "--seeds", "1", "--designs", *DESIGNS]
    claims.main(words)
    runs = claims.runs(DESIGNS, 1)
    results = {run: json.loads(run.path(directory, ".json").read_text()) for run in runs}
    assert len(results) == 2 + 2 + 1
    for run, result in results.items():
        assert 0 <= result["accuracy"] <= 1
        assert set(claims.MEASURES) < set(result["measures"]) == set(result["step_0"])
        assert bool(result["dynamics"]) == run.network.startswith("ConViT")
        assert ("perturbed" in result) == (run in claims.DESIGNS["entropy"])

    first, *others = (run.path(directory, ".json") for run in runs)
    lose_and_repeat(claims, words, first)
    assert json.loads(first.read_text())["measures"] == results[runs[0]]["measures"]

    page, figures = tmp_path / "page.md", tmp_path / "figures"
    report.main([str(directory), str(page), str(figures)])
    text = page.read_text()
    gain = report.difference(report.mean_of("entropy"), *claims.DESIGNS["entropy"])
    assert f"| {gain(results.__getitem__):+.2f} | one seed |  | no power |" in text
    assert "Sharing maps with the next blocks (Refiner, Table 13) |  |  |  | not run |" in text
    for name in ("entropy", "gates"):
        assert_drawn(figures / f"claims-{name}.png")

    others[0].write_text(others[0].read_text().replace("0.002", "0.003"))
    with pytest.raises(SystemExit, match="has other settings"):
        claims.main(words)


@pytest.mark.parametrize(
    ("found", "margin", "expected"),
    [
        ((1.0, 1.2, 0.9), None, "shows"),
        ((-1.0, -1.2, -0.9), None, "contradicts"),
        ((5.0,), None, "no power"),
        ((0.1, -0.1, 0.05), 1.0, "shows"),
        ((3.0, 3.1, 2.9), 1.0, "contradicts"),
        ((0.5, 1.5, 0.9), 1.0, "no power"),
        ((0.01, -0.02, 0.02), None, "not at this scale"),
        ((0.1, 2.0, -0.5), None, "no power"),
    ],
)
def test_verdicts(found, margin, expected):
    (run,) = claims.DESIGNS["gates"]
    claim = report.Claim("", "", "gates", "", {}, lambda of: of(run), size=0.7, margin=margin)
    runs = [{run: number} for number in found]
    assert report.verdicts([claim], runs)[0][-1] == expected


def test_verdicts_are_corrected_together():
    (run,) = claims.DESIGNS["gates"]
    claim = report.Claim("", "", "gates", "", {}, lambda of: of(run))
    runs = [{run: number} for number in (1.0, 2.0, 1.5)]
    ((*_, alone, shows),) = report.verdicts([claim], runs)
    rows = report.verdicts([claim] * 3, runs)
    assert shows == "shows" and {row[-1] for row in rows} == {"no power"}
    assert {row[-2] for row in rows} == {f"{3 * float(alone):.2g}"}


@pytest.mark.parametrize(
    ("failed", "expected"), [((9, 0), "shows"), ((0, 9), "contradicts"), ((2, 1), "no power")]
)
def test_verdicts_of_failures(failed, expected):
    found = [{}, {}, {}]
    for network, count in zip(("ViT-24", "ViT-24 LayerScale"), failed, strict=True):
        own = [run for run in claims.DESIGNS["frontier"] if run.network == network]
        cases = [(results, run) for results in found for run in own]
        for index, (results, run) in enumerate(cases):
            results[run] = {"accuracy": 0.1 if index < count else 0.4}
    claim = next(claim for claim in report.CLAIMS if claim.failures)
    ((text, _, _, verdict),) = report.verdicts([claim], found)
    count = 3 * len(claims.RATES)
    assert verdict == expected and text == f"{failed[0]} of {count}, {failed[1]} of {count}"


def test_exact_claims():
    for _, _, claim in exact_claims.CLAIMS:
        assert claim() < 1e-6


def test_pretrained_networks_and_their_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretrained, "TESTED", 40)
    monkeypatch.setattr(pretrained, "MEASURED", 4)
    source, reference, weights = (tmp_path / n for n in ("x.npz", "ref.npz", "w.weights.h5"))
    model = kv.ViT(**pretrained.SMOKE, input_shape=(56, 56, 3), include_top=False)
    model.save_weights(weights)
    images = numbers((2, 56, 56, 3))
    np.savez(reference, x=images, tokens=model.predict(images, verbose=0))

    runs, page = tmp_path / "runs", tmp_path / "page.md"
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

    page.write_text("| photographs | 1 | 2 | 3 | random |\n|---|\n| old | 0 |\n\nend\n")
    capsys.readouterr()
    pretrained_report.main([str(runs), str(page), *own, "--pictures", str(tmp_path)])
    assert "| entropy |" in page.read_text() and "old" not in page.read_text()
    assert page.read_text().endswith("|\n\nend\n")
    assert "| re-attention, identity | " in capsys.readouterr().out
    for name in pretrained_report.PICTURES:
        assert_drawn(tmp_path / f"real-{name}.png")
