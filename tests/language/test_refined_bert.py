"""benchmarks/refined_bert.py on a tiny network and the texts of this package."""

import importlib
import json

import pytest
from harness import ROOT

pytestmark = pytest.mark.backend_free


def test_runs_and_table(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("refined_bert")
    monkeypatch.setattr(program, "LABELLED", {"train": 16, "held_out": 8})
    monkeypatch.setattr(program, "LENGTH", 16)
    words = [str(tmp_path), "--smoke", "--seeds", "1", "--epochs", "1"]
    words += ["--libraries", "keras_vitx", "rich"]
    program.main(words)
    printed = capsys.readouterr().out
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*-0.json")}
    assert set(results) == {"plain-0", "refined-0"}
    assert results["plain-0"]["parameters"] < results["refined-0"]["parameters"]
    for result in results.values():
        loss = result["history"]["val_loss"][-1]
        assert 0 < loss < 7 and f" {loss:.2f} (" in printed
        assert 0 <= result["accuracy"] <= 1
    corpus = json.loads((tmp_path / "corpus.json").read_text())
    lines = [
        {line for documents in libraries.values() for document in documents for line in document}
        for libraries in corpus.values()
    ]
    assert all(lines) and not lines[0] & lines[1]

    # What is there is left.
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    program.main(words)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert capsys.readouterr().out == printed[printed.index("| |") :]
    with pytest.raises(SystemExit, match="has other settings"):
        program.main([*words, "--epochs", "2"])
    with pytest.raises(SystemExit, match="has other libraries"):
        program.main([*words[:-1], "typer"])
    with pytest.raises(SystemExit, match="'numpi' is not installed"):
        program.main([str(tmp_path / "new"), "--libraries", "numpi"])
