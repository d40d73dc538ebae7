"""The programs for real devices run whole on a CPU, at toy sizes, and go on where they stopped."""

import json
import sys

import accelerator
import compile_ahead
import keras
import pytest
from harness import BACKEND, ROOT

import keras_vitx as kv


@pytest.fixture
def run(monkeypatch):
    """Run a program in this process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(program, *words):
        monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
        program.main()

    yield run
    keras.config.set_dtype_policy("float32")


@pytest.mark.skipif(BACKEND != "torch", reason="run once, where it starts fastest")
def test_every_measurement_of_an_accelerator(tmp_path, run, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")  # A process of a measurement finds the package without it.
    output = tmp_path / "results.jsonl"
    words = (accelerator, output, "--toy", "--models", "RefinedViT_Mini")
    with pytest.raises(SystemExit, match=r"run the command again|give it more"):
        run(*words, "--minutes", 0.35)
    # The first was measured in a process of its own; a process for each of the others takes longer.
    monkeypatch.setattr(accelerator, "run", measured_here)
    run(*words)
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


def measured_here(cell, output, limit):
    arguments = dict(cell)
    return getattr(accelerator, arguments.pop("cell"))(**arguments)


@pytest.mark.skipif(BACKEND != "jax", reason="compiled by JAX")
def test_a_cell_is_compiled_once(tmp_path, run):
    output, cell = tmp_path / "results.jsonl", "cpu/inference/float32/2"
    words = (compile_ahead, "--output", output, "--models", "ViT_Mini", "--cells", cell)
    run(*words)
    first = output.read_text()
    line, model = json.loads(first), kv.ViT_Mini()
    assert (line["model"], line["cell"]) == ("ViT_Mini", cell)
    # Two FLOPs per multiplication of the model; the weights are in the memory of a device.
    assert line["flops"] == pytest.approx(2 * 2 * kv.count_macs(model), rel=0.02)
    assert line["memory"] > 4 * model.count_params() and line["moved"] > line["memory"] / 2
    run(*words)
    assert output.read_text() == first
