"""Blocks of README and pages run; their numbers, calls and tables are those of the package."""

import glob
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

import keras
import pytest
import stated
from examples_runner import few_images, text_of
from harness import ROOT, run_python
from sizes import COUNTS, SIZES
from training.fitting import same_weights

import keras_vitx as kv
from keras_vitx import cli, layers
from keras_vitx.data import sources
from keras_vitx.models import build
from keras_vitx.training import list_recipes, recipes
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
for *_, printed, cell in TABLES:
    MILLIONS.setdefault(cell.strip("`"), set()).update({printed} - {""})
BUILT = [call for call in MILLIONS if not re.fullmatch(r"kv\.\w+\(\)", call)]
"""Calls that the tests of the sizes don't cover."""


def test_cells():
    assert len(TABLES) > 90
    for row in TABLES:
        assert len(row) == 4, row
        where, _, printed, cell = row
        assert re.match(r"(Tables?|Figure|Section|Appendix) ", where), row
        assert re.fullmatch(r"|[\d.]+( \([\d.]+\))?", printed), row
        assert re.fullmatch(r"`(kv|layers)\..+\)`", cell), row


def test_sizes_exist():
    for call in MILLIONS.keys() - set(BUILT):
        for printed in MILLIONS[call]:
            assert_agrees(COUNTS[call[len("kv.") : -len("()")]], printed)


@pytest.mark.parametrize("call", BUILT)
def test_calls(call, monkeypatch):
    # The list of layers is made and checked, but not connected, to save memory.
    monkeypatch.setattr(build, "Chain", lambda made, shape, **kwargs: made)
    made = eval(call, {"keras": keras, "kv": kv, "layers": layers})
    if call.startswith("layers."):
        assert made(keras.KerasTensor((None, 128, 256))).shape == (None, 128, 256)
    else:
        assert any(isinstance(layer, layers.Block) for layer in made)


def assert_agrees(count, printed):
    """Compare a count with the printed millions, to within one of the last digit.

    If the paper's count differs by more, ours follows in parentheses, rounded.
    """
    paper, _, ours = printed.strip(")").partition(" (")
    assert (abs(count / 1e6 - float(paper)) < 0.1 ** decimals(paper)) == (not ours), count
    if ours:
        assert f"{count / 1e6:.{decimals(ours)}f}" == ours


def decimals(number):
    return len(number.partition(".")[2])


OTHERS = "optuna", "keras_tuner", "wandb", "mlflow", "pandas"
"""What `make test-others` installs."""
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text()]


@pytest.fixture
def registries():
    """Forget the families and sizes that a page defines."""
    with patch.dict(build.FAMILIES), patch.dict(build.MODELS), patch.dict(weight_names.TABLES):
        yield


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_blocks_of_a_page_run(page, downloads, write_pictures, tmp_path, monkeypatch):
    """In order, with the names of the blocks before, on a few images of the sample."""
    for package in OTHERS if page.stem == "search" else ():
        pytest.importorskip(package)
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


TRAINING = (DOCS / "training.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| .* \| ([\d+ ]+), (\d+), ([\de.-]+) \|$", TRAINING, re.MULTILINE)


def test_the_table_has_the_recipes():
    assert sorted(name for name, *_ in ROWS) == list_recipes()
    for name, epochs, batch, rate in ROWS:
        recipe = recipes.get(name)
        assert sum(map(int, epochs.split("+"))) == recipe.all_epochs
        assert int(batch) == recipe.batch_size
        assert float(rate) == pytest.approx(recipe.peak)


def test_the_lines_compute_what_fit_computes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "load_npz", few_images)
    names = {"__name__": "training"}
    first, second, *_ = re.findall(r"```python\n(.*?)```", TRAINING, re.DOTALL)
    exec(compile(first, "docs/training.md", "exec"), names)
    # A few images fill no batch of 100.
    names["recipe"] = names["recipe"].replace(batch_size=16, epochs=2)
    keras.utils.set_random_seed(0)
    exec(compile(second, "docs/training.md", "exec"), names)

    keras.utils.set_random_seed(0)
    model = kv.ViT(dim=16, depth=2, num_heads=2, patch_size=8, input_shape=(32, 32, 3), classes=10)
    history = kv.fit(model, "fashion_mnist", names["recipe"], output="runs/fit")
    same_weights(model, names["model"])
    assert history.test == names["plain"].measure(names["batches"].test)
    lines = [Path(name).read_text() for name in ("mine.csv", "runs/fit/history.csv")]
    assert lines[0] == lines[1]


README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", README, flags=re.DOTALL)
# Of every family; `make numbers` counts the other sizes, too.
COUNTED = {*re.findall(r"^\| (\w+) \|", README, re.MULTILINE)}


def paste(block):
    """Run the commands of a block of the shell, but those that install or take minutes."""
    for line in block.splitlines():
        command, *words = shlex.split(line, comments=True)
        assert command in ("keras-vitx", "pip", "make", "export"), line
        if command == "keras-vitx":
            # Few images would be read for 170 epochs.
            words += ["--epochs", "1"] if words[0] == "train" else []
            words = [name for word in words for name in sorted(glob.glob(word)) or [word]]
            with patch.object(sys, "argv", [command, *words]), pytest.raises(SystemExit) as end:
                cli.main()
            assert not end.value.code, line


def test_blocks_of_the_readme_run(downloads, write_pictures, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    # At 224 pixels and 24 blocks, a training takes most of the time.
    monkeypatch.setitem(kv.CaiT_XXS24.data, "input_shape", (64, 64, 3))
    monkeypatch.setitem(kv.CaiT_XXS24.data, "depth", 4)
    photos = [f"photos/{c}/{i}.jpg" for c in "abc" for i in range(4)]
    write_pictures("cat.jpg", "dog.jpg", "new/1.jpg", *photos)
    namespace = {"__name__": "readme"}
    for number, (language, block) in enumerate(BLOCKS):
        if language == "sh":
            paste(block)
        else:
            exec(compile(block, f"block {number} of the README", "exec"), namespace)
    assert len(downloads) == 1
    written = {"runs", "my-model.keras", "page.html", "exported", "photos.onnx"}
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
