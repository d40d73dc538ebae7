"""The scripts for real devices run whole on a CPU, at toy sizes, and go on where they stopped."""

import json
import re

import pytest
from devices.zoo import run_script
from harness import BACKEND, ROOT

import keras_vitx as kv

ACCELERATOR, AHEAD = (ROOT / "benchmarks" / f"{n}.py" for n in ("accelerator", "compile_ahead"))
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="run once, where it starts fastest")
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="compiled by JAX")


@on_torch
def test_every_measurement_of_an_accelerator(tmp_path):
    output = tmp_path / "results.jsonl"
    words = (ACCELERATOR, output, "--toy", "--models", "RefinedViT_Mini")
    # It finds the package without PYTHONPATH.
    ended = run_script(*words, "--minutes", 0.4, check=False, PYTHONPATH="")
    assert ended.returncode and re.search("run the command again|give it more", ended.stderr)
    run_script(*words, PYTHONPATH="")
    rows = list(map(json.loads, output.read_text().splitlines()))
    found = [row["cell"]["cell"] for row in rows]
    assert found.count("machine") == 2 and found[0] == "machine"
    assert set(found) == {"machine", "ceilings", "step", "fit", "correctness"}
    cells = [json.dumps(row["cell"]) for row in rows if row["cell"]["cell"] != "machine"]
    assert len(cells) == len(set(cells)), "A measurement was repeated."
    assert {"backend", "card", "commit", "keras", "torch"} <= rows[0]["result"].keys()
    assert [row for row in rows if "failed" in row["result"]] == []
    for precision, errors in rows[-1]["result"].items():
        limit = 1e-4 if precision == "float32" else 0.2
        assert errors["logits"] < limit and errors["gradients"] < 5 * limit, errors


@on_jax
def test_a_cell_is_compiled_once(tmp_path):
    output, cell = tmp_path / "results.jsonl", "cpu/inference/float32/2"
    words = (AHEAD, "--output", output, "--models", "ViT_Mini", "--cells", cell)
    run_script(*words)
    first = output.read_text()
    line, model = json.loads(first), kv.ViT_Mini()
    assert (line["model"], line["cell"]) == ("ViT_Mini", cell)
    # Two FLOPs per multiplication of the model; the weights are in the memory of a device.
    assert line["flops"] == pytest.approx(2 * 2 * kv.count_macs(model), rel=0.02)
    assert line["memory"] > 4 * model.count_params() and line["moved"] > line["memory"] / 2
    run_script(*words)
    assert output.read_text() == first
