"""The README's code blocks run unchanged, and its table of sizes matches the registry."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import BACKEND
from models.test_sizes import COUNTS
from PIL import Image

import keras_vitx as kv
from keras_vitx.weights import checkpoints_of, save_safetensors

pytestmark = pytest.mark.backend_free

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


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """Random weights in place of the hub's."""
    made = {}

    def download(address, sha256=None):
        (known,) = (one for one in checkpoints_of(None) if address.startswith(one.source))
        if known.name not in made:
            side = known.image_size
            model = kv.create_model(known.constructor, input_shape=(side, side, 3))
            made[known.name] = tmp_path / f"{known.name}.safetensors"
            save_safetensors(model, made[known.name])
        return made[known.name]

    # A function of the package shadows the module.
    monkeypatch.setattr(sys.modules["keras_vitx.weights.load"], "download", download)
    return made


@pytest.mark.skipif(BACKEND != "torch", reason="the blocks are the same on every backend")
def test_blocks_run(downloads, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    names = ["cat.jpg", "dog.jpg", *(f"photos/{c}/{i}.jpg" for c in "abc" for i in range(4))]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (60, 80, 3), "uint8")).save(path)
    namespace = {"__name__": "readme"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of the README", "exec"), namespace)
    assert len(downloads) == 2
    written = {"runs", "my-model", "my-model.keras", "attention.png", "exported", "model.tflite"}
    assert written <= {path.name for path in tmp_path.iterdir()}
    assert namespace["exported"].difference < 0.05


def test_the_table_has_every_size():
    assert set(SIZES) == set(kv.list_models())
    assert f"All {len(SIZES)} sizes" in README
    assert f"the {len(checkpoints_of(None))} known checkpoints" in README


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
