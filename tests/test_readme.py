"""The README's code names what exists, and the table of sizes is the registry's."""

import ast
import operator
import re
from pathlib import Path

import pytest
from models.test_sizes import COUNTS

import keras_vitx as kv

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SIZES = {
    name: cells
    for name, *cells in re.findall(
        r"^\| (\w+) \| ([\d, +]+) \| ([\d, ]+) \| ([\d, –]+) \| ([\d,]+) \| ",
        (ROOT / "docs" / "sizes.md").read_text(),
        flags=re.MULTILINE,
    )
}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_names_exist(block):
    written = {ast.unparse(n) for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Attribute)}
    for name in written:
        if re.fullmatch(r"kv(\.\w+)+", name):
            assert operator.attrgetter(name.removeprefix("kv."))(kv) is not None


def test_the_table_has_every_size():
    assert set(SIZES) == set(kv.list_models())
    assert f"all {len(SIZES)} sizes" in README


@pytest.mark.parametrize("name", SIZES)
def test_the_table_says_what_the_registry_says(name):
    blocks, width, heads, parameters = SIZES[name]
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
    assert int(parameters.replace(",", "")) == COUNTS[name]


def numbers(cell):
    return tuple(map(int, re.findall(r"\d+", cell)))
