"""The script for the first GPU runs whole on a CPU, at toy sizes, and goes on where it stopped."""

import json
import os
import re
import subprocess
import sys

import pytest
from harness import BACKEND, ROOT

SCRIPT = ROOT / "benchmarks" / "accelerator.py"


def run(*words):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.skipif(BACKEND != "torch", reason="run once, by the backend that starts fastest")
def test_every_measurement(tmp_path):
    output = tmp_path / "results.jsonl"
    words = (output, "--toy", "--models", "RefinedViT_Mini")
    ended = run(*words, "--minutes", 0.5)
    assert ended.returncode and re.search("run the command again|give it more", ended.stderr)
    done = run(*words)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = list(map(json.loads, output.read_text().splitlines()))
    found = [row["cell"]["cell"] for row in rows]
    assert found.count("machine") == 2 and found[0] == "machine"
    assert set(found) == {"machine", "ceilings", "step", "fit", "correctness"}
    cells = [json.dumps(row["cell"]) for row in rows if row["cell"]["cell"] != "machine"]
    assert len(cells) == len(set(cells)), "A measurement was repeated."
    assert {"backend", "card", "commit", "keras", "torch"} <= rows[0]["result"].keys()
    for row in rows:
        assert "failed" not in row["result"], row
    for precision, errors in rows[-1]["result"].items():
        limit = 1e-4 if precision == "float32" else 0.2
        assert errors["logits"] < limit and errors["gradients"] < 5 * limit, errors


def test_an_unknown_model_is_an_error(tmp_path):
    done = run(tmp_path / "results.jsonl", "--models", "ViT_Q")
    assert done.returncode and "--models must be of ViT_S, CaiT_S24" in done.stderr
