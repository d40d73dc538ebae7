"""Every call in docs/ablations.md is one that the library takes."""

import ast
import re
from pathlib import Path

import keras
import pytest
from models.test_sizes import COUNTS

import keras_vitx as kv
from keras_vitx import layers
from keras_vitx.models import build

ABLATIONS = (Path(__file__).parents[1] / "docs" / "ablations.md").read_text()
TABLES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in ABLATIONS.splitlines()
    if line.startswith("| ") and not line.startswith("| where")
]
MILLIONS = {}
"""What the tables say of each call: millions of parameters, as printed."""
for *_, stated, cell in TABLES:
    if cell.startswith("`"):
        MILLIONS.setdefault(cell.strip("`"), set()).update({stated} - {""})
BUILT = [call for call in MILLIONS if not re.fullmatch(r"kv\.\w+\(\)", call)]
"""Those that tests of the sizes don't already make."""


def test_cells():
    assert len(TABLES) > 200
    for row in TABLES:
        assert len(row) == 4, row
        where, _, stated, cell = row
        assert re.match(r"(Tables?|Figure|Section|Appendix) ", where), row
        assert re.fullmatch(r"|[\d.]+( \([\d.]+\))?", stated), row
        assert re.fullmatch(r"`(kv|layers)\..+\)`|(recipe|evaluation|data): [^`]+.*", cell), row


def test_sizes_exist():
    for call in MILLIONS.keys() - set(BUILT):
        name = call[len("kv.") : -len("()")]
        assert name in kv.list_models()
        for stated in MILLIONS[call]:
            assert_agrees(COUNTS[name], stated)


@pytest.mark.parametrize("call", BUILT)
def test_calls(call, monkeypatch):
    # The list of layers is made and checked, but not connected: that takes memory.
    monkeypatch.setattr(build, "Chain", lambda made, shape, **kwargs: made)
    made = eval(call, {"keras": keras, "kv": kv, "layers": layers})
    if call.startswith("layers."):
        assert made(keras.KerasTensor((None, 128, 256))).shape == (None, 128, 256)
    else:
        assert any(isinstance(layer, layers.Block) for layer in made)


def assert_agrees(count, stated):
    """Compare a count with the printed millions: one of the last digit may be missing.

    Ours in parentheses is rounded, and there because the paper's is further away.
    """
    paper, _, ours = stated.strip(")").partition(" (")
    assert (abs(count / 1e6 - float(paper)) < 0.1 ** decimals(paper)) == (not ours), count
    if ours:
        assert f"{count / 1e6:.{decimals(ours)}f}" == ours


def decimals(number):
    return len(number.partition(".")[2])


def test_blocks_run():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", ABLATIONS, flags=re.DOTALL):
        exec(compile(ast.parse(block), "docs/ablations.md", "exec"), names)
    assert names["images"].shape == (1, 32, 32, 3)
    fixed = [block.ls1 for block in names["again"].steps if isinstance(block, layers.Block)]
    assert len(fixed) == 6
    assert not any(scale.trainable_variables for scale in fixed)
