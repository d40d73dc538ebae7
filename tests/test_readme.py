"""The README's code blocks run unchanged, and its table of sizes matches the registry."""

import re
from pathlib import Path

import pytest
from harness import BACKEND
from models.written import SIZES

import keras_vitx as kv
from keras_vitx.weights import checkpoints_of

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[1]
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
    written = {"runs", "my-model", "page.html", "exported"}
    assert written <= {path.name for path in tmp_path.iterdir()}
    assert namespace["exported"].difference < 0.05


def test_the_accuracies_are_those_that_the_files_of_the_weights_record():
    names, values = re.search(
        r"^\|( \|.+_Mini) \|\n.*\n\| CIFAR-10 top-1, % \|(.+)\|$", README, re.M
    ).groups()
    stated = dict(zip(names.strip(" |").split(" | "), map(float, values.split("|")), strict=True))
    shipped = [one for one in checkpoints_of(None) if one.source.startswith("package:")]
    assert stated == {one.constructor: one.top1 for one in shipped}


@pytest.mark.parametrize(
    "extra, needs_it", [("onnx", "photos.onnx"), ("export", 'kv.export(model, "exported"')]
)
def test_the_extra_of_a_command_is_installed_before_it(extra, needs_it):
    assert 0 < README.find(f'pip install ".[{extra}]"') < README.find(needs_it)


def test_it_is_short_and_counts_the_checkpoints():
    assert len(README.splitlines()) <= 130
    assert f"the {len(checkpoints_of(None))} known checkpoints" in README


@pytest.mark.parametrize("name", SIZES)
def test_the_table_says_what_the_registry_says(name):
    blocks, width, heads, _ = SIZES[name]
    constructor = kv.models.MODELS[name]
    data = constructor.data
    if constructor.family == "CaiT":
        assert numbers(blocks) == (data["depth"], 2)
    elif "depths" in data:
        assert numbers(blocks) == data["depths"]
    else:
        assert sum(numbers(blocks)) == data["depth"]
    assert numbers(width) == data.get("dims", (data.get("dim"),))
    stages = data.get("num_heads", ())
    assert numbers(heads) == (stages if isinstance(stages, tuple) else (stages,))


def numbers(cell):
    return tuple(map(int, re.findall(r"\d+", cell)))


def test_the_speeds_are_those_of_the_documentation():
    """`benchmarks/speed.py --write` writes both tables."""
    readme, docs = map(speeds, (README, (ROOT / "docs" / "speed.md").read_text()))
    assert len(readme) == 8
    assert readme == [{title: row[title] for title in readme[0]} for row in docs]


def speeds(page):
    """Return the rows of the first table of speed-ups, by title."""
    table = re.search(r"^\| model \| peer \|.*\n(?:\|.*\n)+", page, re.MULTILINE)[0]
    titles, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    return [dict(zip(titles, row, strict=True)) for row in rows]
