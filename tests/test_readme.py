"""The README's code blocks run unchanged, and its table of sizes matches the registry."""

import re

import pytest
from harness import BACKEND, ROOT
from models.written import COUNTS, GMACS, SIZES

import keras_vitx as kv
from keras_vitx.weights import checkpoints_of
from keras_vitx.weights.catalog import find

pytestmark = pytest.mark.backend_free

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.skipif(BACKEND != "torch", reason="the blocks are the same on every backend")
def test_blocks_run(downloads, write_pictures, tmp_path, monkeypatch):
    # At 224 pixels, a training takes most of the time.
    monkeypatch.setitem(kv.CaiT_XXS24.data, "input_shape", (64, 64, 3))
    write_pictures("cat.jpg", "dog.jpg", *(f"photos/{c}/{i}.jpg" for c in "abc" for i in range(4)))
    namespace = {"__name__": "readme"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of the README", "exec"), namespace)
    assert len(downloads) == 1
    written = {"runs", "my-model.keras", "page.html", "exported"}
    assert written <= {path.name for path in tmp_path.iterdir()}
    assert namespace["exported"].difference < 0.05


def test_the_accuracies_are_those_that_the_files_of_the_weights_record():
    stated = dict(re.findall(r"(\w+_Mini) (\d+\.\d+)", README.partition("CIFAR-10 top-1")[2]))
    shipped = [one for one in checkpoints_of(None) if one.source.startswith("package:")]
    assert stated == {one.constructor: f"{one.top1:.2f}" for one in shipped}


ROWS = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| (.+) \| (.+) \|$", README, re.M)


@pytest.mark.parametrize("name, parameters, macs, top1, checkpoint", ROWS)
def test_a_size_has_the_figures_of_the_documentation(name, parameters, macs, top1, checkpoint):
    assert f"{COUNTS[name] / 1e6:.1f}" == parameters and GMACS[name] == macs
    if checkpoint.startswith("none is public"):
        assert top1 == "–" and name not in {one.constructor for one in checkpoints_of(None)}
    else:
        entry = find(checkpoint.split("`")[1], name)
        assert top1 == ("–" if entry.top1 is None else f"{entry.top1:.1f}")
        assert entry.image_size == (518 if name.startswith("DINOv2") else 224)


def test_it_counts_the_checkpoints():
    assert f"the {len(checkpoints_of(None))} known checkpoints" in README


@pytest.mark.parametrize("name", SIZES)
def test_the_table_says_what_the_registry_says(name):
    blocks, width, heads, _ = SIZES[name]
    constructor = kv.models.MODELS[name]
    data, depths = constructor.data, numbers(blocks)
    if constructor.family == "CaiT":
        assert depths == (data["depth"], 2)
    else:
        assert depths == data["depths"] if "depths" in data else sum(depths) == data["depth"]
    assert numbers(width) == data.get("dims", (data.get("dim"),))
    stages = data.get("num_heads", ())
    assert numbers(heads) == (stages if isinstance(stages, tuple) else (stages,))


def numbers(cell):
    return tuple(map(int, re.findall(r"\d+", cell)))


def test_the_speeds_are_those_of_the_documentation():
    """The range of the table that `benchmarks/speed.py --write` writes."""
    page = (ROOT / "docs" / "speed.md").read_text()
    table = re.search(r"^\| model \| peer \|.*\n(?:\|.*\n)+", page, re.MULTILINE)[0]
    titles, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    rows = [dict(zip(titles, row, strict=True)) for row in rows]
    stated = re.findall(r"(inference|training) (\d\S+) to (\d\.\d+)", README)
    assert len(stated) == 2
    for mode, least, most in stated:
        found = [row[f"{mode}, {backend}"] for row in rows for backend in ("PyTorch", "JAX")]
        assert (least, most) == (min(found), max(found))
