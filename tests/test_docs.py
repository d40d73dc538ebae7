"""Every call in docs/ablations.md is valid, and the blocks of all pages run."""

import re

import keras
import pytest
from examples_runner import few_images, text_of
from harness import ROOT, run_python
from sizes import COUNTS

import keras_vitx as kv
from keras_vitx import layers
from keras_vitx.data import sources
from keras_vitx.models import build
from keras_vitx.weights import names as weight_names

pytestmark = pytest.mark.backend_free

DOCS = ROOT / "docs"
TABLES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "ablations.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| where")
]
MILLIONS = {}
"""Millions of parameters of each call, as printed in the tables."""
for *_, stated, cell in TABLES:
    MILLIONS.setdefault(cell.strip("`"), set()).update({stated} - {""})
BUILT = [call for call in MILLIONS if not re.fullmatch(r"kv\.\w+\(\)", call)]
"""Calls that the tests of the sizes don't cover."""


def test_cells():
    assert len(TABLES) > 90
    for row in TABLES:
        assert len(row) == 4, row
        where, _, stated, cell = row
        assert re.match(r"(Tables?|Figure|Section|Appendix) ", where), row
        assert re.fullmatch(r"|[\d.]+( \([\d.]+\))?", stated), row
        assert re.fullmatch(r"`(kv|layers)\..+\)`", cell), row


def test_sizes_exist():
    for call in MILLIONS.keys() - set(BUILT):
        for stated in MILLIONS[call]:
            assert_agrees(COUNTS[call[len("kv.") : -len("()")]], stated)


@pytest.mark.parametrize("call", BUILT)
def test_calls(call, monkeypatch):
    # The list of layers is made and checked, but not connected, to save memory.
    monkeypatch.setattr(build, "Chain", lambda made, shape, **kwargs: made)
    made = eval(call, {"keras": keras, "kv": kv, "layers": layers})
    if call.startswith("layers."):
        assert made(keras.KerasTensor((None, 128, 256))).shape == (None, 128, 256)
    else:
        assert any(isinstance(layer, layers.Block) for layer in made)


def assert_agrees(count, stated):
    """Compare a count with the printed millions, to within one of the last digit.

    If the paper's count differs by more, ours follows in parentheses, rounded.
    """
    paper, _, ours = stated.strip(")").partition(" (")
    assert (abs(count / 1e6 - float(paper)) < 0.1 ** decimals(paper)) == (not ours), count
    if ours:
        assert f"{count / 1e6:.{decimals(ours)}f}" == ours


def decimals(number):
    return len(number.partition(".")[2])


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text()]


@pytest.fixture
def registries():
    """Forget the families and sizes that a page defines."""
    registries = build.FAMILIES, build.MODELS, weight_names.TABLES
    kept = list(map(dict, registries))
    yield
    for registry, items in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(items)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_blocks_of_a_page_run(page, downloads, write_pictures, tmp_path, monkeypatch):
    """In order, with the names of the blocks before, on a few images of the sample."""
    write_pictures("cat.png", "coffee.png", "rocket.jpg")
    monkeypatch.setattr(sources, "load_npz", few_images)
    names = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


def test_the_block_for_jax_runs():
    pytest.importorskip("jax")
    page = text_of(DOCS / "export.md")
    (block,) = re.findall(r"```python title=.*jax\"\n(.*?)```", page, flags=re.DOTALL)
    assert float(run_python(block, backend="jax").stdout) < 5e-5
