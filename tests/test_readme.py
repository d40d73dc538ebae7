"""The README's code runs unchanged; numbers of README and docs are those of their commands."""

import re

import pytest
import stated
from harness import ROOT
from sizes import SIZES

import keras_vitx as kv

pytestmark = pytest.mark.backend_free

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
# Of every family; `make numbers` counts the other sizes, too.
COUNTED = {*re.findall(r"^\| (\w+) \|", README, re.MULTILINE)}


def test_blocks_run(downloads, write_pictures, tmp_path, monkeypatch):
    # At 224 pixels and 24 blocks, a training takes most of the time.
    monkeypatch.setitem(kv.CaiT_XXS24.data, "input_shape", (64, 64, 3))
    monkeypatch.setitem(kv.CaiT_XXS24.data, "depth", 4)
    write_pictures("cat.jpg", "dog.jpg", *(f"photos/{c}/{i}.jpg" for c in "abc" for i in range(4)))
    namespace = {"__name__": "readme"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of the README", "exec"), namespace)
    assert len(downloads) == 1
    written = {"runs", "my-model.keras", "page.html", "exported"}
    assert written <= {path.name for path in tmp_path.iterdir()}
    assert namespace["exported"].difference < 0.05


@pytest.mark.parametrize("row", stated.QUICK, ids=lambda row: f"{row.page} {row.text}")
def test_numbers_are_those_of_their_commands(row):
    assert not list(row.differing(COUNTED)), "`make sizes` writes those of sizes"


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
