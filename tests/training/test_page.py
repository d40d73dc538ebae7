"""docs/training.md: its table, and its lines in place of `kv.fit`."""

import re
from pathlib import Path

import keras
import pytest
from examples_runner import few_images
from harness import BACKEND, ROOT
from training.fitting import same_weights

import keras_vitx as kv
from keras_vitx.data import sources
from keras_vitx.training import list_recipes, recipes

PAGE = (ROOT / "docs" / "training.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| .* \| ([\d+ ]+), (\d+), ([\de.-]+) \|$", PAGE, re.MULTILINE)


@pytest.mark.backend_free
def test_the_table_has_the_recipes():
    assert sorted(name for name, *_ in ROWS) == list_recipes()
    for name, epochs, batch, rate in ROWS:
        recipe = recipes.get(name)
        assert sum(map(int, epochs.split("+"))) == recipe.all_epochs
        assert int(batch) == recipe.batch_size
        assert float(rate) == pytest.approx(recipe.peak)


@pytest.mark.skipif(BACKEND != "torch", reason="the lines are the same on every backend")
def test_the_lines_compute_what_fit_computes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "load_npz", few_images)
    names = {"__name__": "training"}
    first, second, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
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
