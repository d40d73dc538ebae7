"""benchmarks/exact_claims.py and first_step.py."""

import sys

import exact_claims
import first_step
import pytest
from harness import ROOT

pytestmark = pytest.mark.backend_free


def test_exact_claims():
    for _, _, claim in exact_claims.CLAIMS:
        assert claim() < 1e-6


def test_first_steps_are_compared(monkeypatch, tmp_path, capsys):
    found = first_step.run("torch", ROOT, "", "ViT_Ti", 1, 1)
    assert found["first step, s"] > 0 and found["memory, MiB"] > 100
    assert found["loss"] == pytest.approx(6.9, abs=1)
    monkeypatch.setattr(first_step, "run", lambda backend, *_: found)
    words = ["--models", "ViT_Ti", "--backends", "torch", "--beside", tmp_path / "old"]
    words += ["--plot", tmp_path / "ratios.png"]
    monkeypatch.setattr(sys, "argv", ["first_step.py", *map(str, words)])
    first_step.main()
    assert "| this / old | 1.00 (1.00–1.00) |" in capsys.readouterr().out
    assert (tmp_path / "ratios.png").stat().st_size > 5000
