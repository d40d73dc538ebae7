"""The README's code names what exists, and its table of sizes is the registry's."""

import ast
import operator
import re
from pathlib import Path

import pytest

import keras_vitx as kv

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_names_exist(block):
    written = {ast.unparse(n) for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Attribute)}
    for name in written:
        if re.fullmatch(r"kv(\.\w+)+", name):
            assert operator.attrgetter(name.removeprefix("kv."))(kv) is not None


def test_the_table_has_every_size_of_cait():
    rows = re.findall(r"^\| (\w+) \| (\d+) \+ \d \| (\d+) \| (\d+) \|", README, flags=re.MULTILINE)
    assert {name: tuple(map(int, numbers)) for name, *numbers in rows} == {
        name: tuple(constructor.data[key] for key in ("depth", "dim", "num_heads"))
        for name, constructor in kv.models.MODELS.items()
        if constructor.family == "CaiT"
    }
