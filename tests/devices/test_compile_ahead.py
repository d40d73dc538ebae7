"""`benchmarks/compile_ahead.py` for the CPU, whose compiler is here: lines, resuming, errors."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from harness import BACKEND, ROOT

if BACKEND != "jax":
    pytest.skip("compiled by JAX", allow_module_level=True)

SCRIPT = ROOT / "benchmarks" / "compile_ahead.py"
CELL = "cpu/inference/float32/2"


def run(output, *options):
    command = [sys.executable, str(SCRIPT), "--output", str(output), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_cell_is_compiled_once(tmp_path):
    output = tmp_path / "results.jsonl"
    done = run(output, "--models", "ViT_Mini", "--cells", CELL)
    assert done.returncode == 0, done.stderr
    first = output.read_text()
    line = json.loads(first)
    assert (line["model"], line["cell"]) == ("ViT_Mini", CELL)
    # Two FLOPs per multiplication of the model; the weights are in the memory of a device.
    import keras_vitx as kv

    model = kv.ViT_Mini()
    assert line["flops"] == pytest.approx(2 * 2 * kv.count_macs(model), rel=0.02)
    assert line["memory"] > 4 * model.count_params() and line["moved"] > line["memory"] / 2
    assert run(output, "--models", "ViT_Mini", "--cells", CELL).returncode == 0
    assert output.read_text() == first


def test_unknown_models_and_cells(tmp_path):
    done = run(tmp_path / "results.jsonl", "--models", "ViT_Huger")
    assert done.returncode == 2 and "`kv.list_models()`. Received: {'ViT_Huger'}" in done.stderr
    done = run(tmp_path / "results.jsonl", "--cells", "v5e-4/step/float32/66")
    assert done.returncode == 2 and "Received: 'v5e-4/step/float32/66'" in done.stderr


def test_bytes_that_a_program_moves():
    """Padded to tiles of 8 x 128, once per trip, without what stays in the TPU's own memory."""
    spec = importlib.util.spec_from_file_location("compile_ahead", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.size_of("bf16[5,197,197]{2,1,0:T(8,128)(2,1)}") == 2 * 5 * 200 * 256
    assert script.size_of("(f32[11,4]{1,0}, f32[8]{0:T(128)S(1)})", trips=11) == 16
