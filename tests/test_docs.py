"""Every call in docs/ablations.md is valid, and the blocks of all pages run."""

import inspect
import math
import re
import types

import harness
import keras
import numpy as np
import pytest
from examples_runner import few_images
from harness import BACKEND, ROOT, gradients, numbers, randomize
from keras import ops
from models.written import COUNTS

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
    if cell.startswith("`"):
        MILLIONS.setdefault(cell.strip("`"), set()).update({stated} - {""})
BUILT = [call for call in MILLIONS if not re.fullmatch(r"kv\.\w+\(\)", call)]
"""Calls that the tests of the sizes don't cover."""


def test_cells():
    assert len(TABLES) > 200
    for row in TABLES:
        assert len(row) == 4, row
        where, _, stated, cell = row
        assert re.match(r"(Tables?|Figure|Section|Appendix) ", where), row
        assert re.fullmatch(r"|[\d.]+( \([\d.]+\))?", stated), row
        assert re.fullmatch(
            r"`(kv|layers)\..+\)`|(recipe|evaluation|data|below|none): [^`]+.*", cell
        ), row


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


WITHOUT_EFFECT = ("proj_l/bias", "attn/k/bias", "pos_proj/bias", "reatten_matrix/bias")
"""Path suffixes of biases that a softmax cancels, or in re-attention BatchNormalization."""


def narrowed(name, width=2):
    """Return a function that makes a family or a size with heads of `width`, for small images."""
    size = kv.models.MODELS.get(name)
    family = getattr(kv, size.family if size else name)

    def make(*args, **kwargs):
        given = dict(zip(inspect.signature(family).parameters, args, strict=False))
        arguments = {**(size.data if size else {}), **given, **kwargs}
        heads = arguments.get("num_heads", 1)
        if "dims" in arguments:
            arguments["dims"] = tuple(width * count for count in heads)
        else:
            # `num_heads` may also be given to a function `attention=`.
            arguments["dim"] = width * math.lcm(heads, 6 if "attention" in arguments else 1)
        side = 42 if "dims" in arguments else 2 * arguments.get("patch_size", 16)
        arguments.update(input_shape=(side, side, 3), classes=3, classifier_activation=None)
        return family(**arguments)

    return make


@pytest.mark.skipif(BACKEND != "torch", reason="the calls are the same on every backend")
@pytest.mark.parametrize("call", BUILT)
def test_gradients_reach_every_variable(call):
    # A ReLU of one hidden unit may be 0 for all images.
    width = 16 if "SqueezeExcitation" in call else 2
    narrow = {name: narrowed(name, width) for name in re.findall(r"\bkv\.(\w+)", call)}
    made = eval(call, {"keras": keras, "kv": types.SimpleNamespace(**narrow), "layers": layers})
    x = numbers((16, 128, 256) if call.startswith("layers.") else (16, *made.input_shape[1:]))
    made(x[:1])
    # LayerScale initialized to 0 blocks the gradients of its branch.
    randomize(made, 0.3)

    def loss():
        outputs = enumerate(keras.tree.flatten(harness.call(made, x, training=True)))
        weighed = (ops.mean(ops.multiply(y, numbers(y.shape, seed=i))) for i, y in outputs)
        return sum(weighed) + sum(made.losses)

    # The ninth block lacks one of its branches.
    unread = "blocks_8/norm" if "Rescaling(0.0)" in call else None
    variables = [v for v in made.trainable_variables if not v.path.endswith(WITHOUT_EFFECT)]
    variables = [v for v in variables if not (unread and unread in v.path)]
    assert variables
    _, found = gradients(loss, variables)
    without = [v.path for v, g in zip(variables, found, strict=True) if not g.any()]
    assert not without
    assert all(np.isfinite(gradient).all() for gradient in found)


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


@pytest.mark.skipif(BACKEND != "torch", reason="the blocks are the same on every backend")
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_blocks_of_a_page_run(page, downloads, write_pictures, tmp_path, monkeypatch):
    """In order, with the names of the blocks before, on a few images of the sample."""
    write_pictures("cat.png", "coffee.png", "rocket.jpg")
    monkeypatch.setattr(sources, "load_npz", few_images)
    names = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
