"""The script for the first GPU runs whole on a CPU, at toy sizes."""

import json
import os
import subprocess
import sys

import pytest
from harness import BACKEND, ROOT


@pytest.mark.skipif(BACKEND != "torch", reason="run once, by the backend that starts fastest")
def test_every_section(tmp_path):
    output = tmp_path / "results.jsonl"
    script = ROOT / "benchmarks" / "accelerator.py"
    done = subprocess.run(
        [sys.executable, str(script), "--toy", "--output", str(output)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results = list(map(json.loads, output.read_text().splitlines()))
    sections = {result["section"] for result in results}
    assert sections == {"ceilings", "correctness", "steps", "kernels", "memory", "fit"}
    errors = [result for result in results if result["section"] == "correctness"]
    assert len(errors) == 6
    for result in errors:
        limit = 1e-4 if result["precision"] == "float32" else 0.2
        assert result["logits"] < limit and result["gradients"] < 5 * limit, result
    for result in results:
        assert "failed" not in json.dumps(result), result
