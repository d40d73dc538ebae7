"""Files of every format, valid and invalid."""

import argparse
import builtins
import collections
import json
import zipfile

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vitx as kv
from keras_vitx.weights import load_weights, resample, resolve

pytestmark = pytest.mark.backend_free


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def state(torch, golden_tensors):
    return {name: torch.tensor(array) for name, array in golden_tensors.items()}


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


def extras(torch):
    """What training scripts keep beside the weights."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    return {
        "optimizer": optimizer.state_dict(),
        "scaler": {"scale": 65536.0},
        "args": argparse.Namespace(lr=1e-3, device=torch.device("cpu"), half=torch.bfloat16),
        "seen": collections.Counter("abc"),
        "set": {1, 2},
        "bytes": b"\0\xff",
        "rng": torch.get_rng_state(),
        "size": torch.Size([2, 3]),
    }


TORCH_FILES = {
    "plain": lambda torch, s: s,
    "model": lambda torch, s: {"model": prefixed(s, "module.")},
    "state_dict": lambda torch, s: {"state_dict": s, "epoch": 3, "arch": "cait"},
    "model_ema": lambda torch, s: {"model": prefixed(s, "wrong."), "model_ema": s},
    "state_dict_ema": lambda torch, s: {
        "state_dict": prefixed(s, "wrong."),
        "state_dict_ema": prefixed(s, "model."),
    },
    "nested": lambda torch, s: {
        "model": {"state_dict": prefixed(s, "_orig_mod.module.")},
        "model_ema": None,
    },
    "extras": lambda torch, s: {**extras(torch), "model": s},
    "parameters": lambda torch, s: {
        **extras(torch),
        "model": {name: torch.nn.Parameter(value) for name, value in s.items()},
    },
}


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        *((content, suffix) for content in TORCH_FILES for suffix in (".pth", ".old.pth")),
        *(("plain", suffix) for suffix in (".pt", ".bin", ".pth.tar")),
    ],
)
def test_torch_files(torch, state, tiny, golden_model, same_weights, tmp_path, content, suffix):
    path = tmp_path / f"file{suffix}"
    content = TORCH_FILES[content](torch, state)
    torch.save(content, path, _use_new_zipfile_serialization=suffix != ".old.pth")
    same_weights(tiny(weights=path), golden_model)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_half_precision(torch, state, tiny, golden_tensors, tmp_path, weights_of, suffix):
    from safetensors.torch import save_file

    path = tmp_path / f"half{suffix}"
    (torch.save if suffix == ".pth" else save_file)(
        {name: value.to(torch.bfloat16) for name, value in state.items()}, path
    )
    found = weights_of(tiny(weights=path))["norm/gamma"]
    np.testing.assert_allclose(found, golden_tensors["norm.weight"], rtol=1e-2)


def test_prefixed_safetensors(tiny, golden_model, golden_tensors, same_weights, tmp_path):
    save_file(prefixed(golden_tensors, "model.module."), tmp_path / "p.safetensors")
    same_weights(tiny(weights=tmp_path / "p.safetensors"), golden_model)


def test_without_torch_the_extra_is_named(torch, state, tmp_path, unused, monkeypatch):
    torch.save(state, tmp_path / "file.pth")
    real = builtins.__import__

    def without_torch(name, *args, **kwargs):
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *args, **kwargs)

    resolved = resolve(tmp_path / "file.pth")
    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(ImportError, match='extra "torch"'):
        kv.weights.load(unused, resolved)


@pytest.mark.parametrize("content", [[1, 2], {"weight": "text"}, {"epoch": 3}])
def test_torch_files_of_something_else(torch, unused, tmp_path, content):
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"file\.pth.*no plain checkpoint"):
        load_weights(unused, tmp_path / "file.pth")


FACTS = {
    "model": "a",
    "family": "CaiT",
    "grid": None,
    "class_names": None,
    "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3},
}
WRONG_FACTS = [
    ("grid", [0, 4], "`grid`"),
    ("grid", [-4, -4], "`grid`"),
    ("grid", [float("inf"), 4], "`grid`"),
    ("grid", "four", "`grid`"),
    ("class_names", 5, "`class_names`"),
    ("class_names", [["a"]], "`class_names`"),
    ("class_names", ["a"], "names 1 classes but has weights for 10"),
    ("preprocessing", {"std": [0.5] * 3}, "`preprocessing`.*`mean`"),
    ("preprocessing", {"mean": [0.5] * 3, "std": "abc"}, "`std`"),
    ("preprocessing", [0.5], "`preprocessing`"),
    ("family", 3, "`family`"),
    ("model", None, "`model`"),
]


@pytest.fixture(scope="module")
def keras_members(golden_model, tmp_path_factory):
    """The members of the golden model's `.keras` file."""
    path = tmp_path_factory.mktemp("keras") / "m.keras"
    golden_model.save(path)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture
def write_keras(keras_members, tmp_path):
    """Write the golden model's `.keras` file with another config, repacked as a user might."""

    def write(config):
        with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in {**keras_members, "config.json": json.dumps(config)}.items():
                file.writestr(name, content)
        return tmp_path / "m.keras"

    return write


@pytest.mark.parametrize(("fact", "value", "said"), WRONG_FACTS)
@pytest.mark.parametrize("kind", ["safetensors", "keras"])
def test_wrong_facts_about_the_model(
    unused, golden_tensors, keras_members, write_keras, tmp_path, kind, fact, value, said
):
    facts = {**FACTS, fact: value}
    if kind == "safetensors":
        path = tmp_path / "m.safetensors"
        metadata = {key: json.dumps(value) for key, value in facts.items()}
        save_file(golden_tensors, path, {"library": "keras_vitx", **metadata})
    else:
        config = json.loads(keras_members["config.json"])
        layers = [{"config": {"grid": facts["grid"]}}]
        config["config"].update({**facts, "name": facts["model"], "layers": layers})
        path = write_keras(config)
    with pytest.raises(ValueError, match=rf"m\.{kind}.*{said}") as error:
        load_weights(unused, path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize(("grid", "said"), [(None, "`grid` is missing"), ("[" * 9999, "")])
def test_metadata_that_is_cut_off(unused, golden_tensors, tmp_path, grid, said):
    metadata = {key: json.dumps(value) for key, value in FACTS.items() if key != "grid"}
    metadata |= {"library": "keras_vitx"} | ({"grid": grid} if grid else {})
    save_file(golden_tensors, tmp_path / "m.safetensors", metadata)
    with pytest.raises(ValueError, match=rf"m\.safetensors.*{said}"):
        load_weights(unused, tmp_path / "m.safetensors")


@pytest.mark.parametrize("config", [[], {}, {"config": []}, {"config": {"layers": 3}}])
def test_configs_of_no_model(unused, write_keras, config):
    with pytest.raises(ValueError, match=r"m\.keras.*config\.json"):
        load_weights(unused, write_keras(config))


def test_keras_files_are_not_built(golden_model, keras_members, write_keras, tiny, same_weights):
    config = json.loads(keras_members["config.json"])
    # If it were built, an unknown layer would be an error.
    config["config"]["layers"][2]["class_name"] = "Unknown"
    config["config"]["layers"][2]["config"]["dim"] = 1 << 42
    config["config"]["class_names"] = list("abcdefghij")
    loaded = tiny(weights=write_keras(config))
    same_weights(loaded, golden_model)
    assert tuple(loaded.class_names) == tuple("abcdefghij")


@pytest.fixture
def saved(golden_model, golden_file, tmp_path):
    """Write the golden weights as a file with a suffix."""

    def write(suffix):
        path = tmp_path / f"saved{suffix}"
        if suffix == ".pth":
            pytest.importorskip("torch")
            kv.weights.save_torch(golden_model, path)
        elif suffix == ".safetensors":
            path.write_bytes(golden_file.read_bytes())
        else:
            (golden_model.save if suffix == ".keras" else golden_model.save_weights)(path)
        return path

    return write


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".weights.h5", ".keras"])
@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_damaged_files(saved, unused, suffix, damage):
    path = saved(suffix)
    content = path.read_bytes()
    truncated = content[: len(content) * 2 // 3]
    path.write_bytes(
        {"truncated": truncated, "text": b"<html>no</html>" * 99, "empty": b""}[damage]
    )
    with pytest.raises(ValueError, match=rf"weights=.*{path.name}") as caught:
        load_weights(unused, path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_keras_files(saved, tiny, golden_model, golden_tensors, same_weights, weights_of, suffix):
    path = saved(suffix)
    same_weights(tiny(weights=path), golden_model)
    same_weights(tiny(weights=path, classes=7), golden_model, but=["head"])
    same_weights(tiny(weights=path, include_top=False), golden_model, but=["head"])
    found = weights_of(tiny(weights=path, input_shape=(64, 48, 3)))["pos_embed/embeddings"]
    np.testing.assert_array_equal(found, resample(golden_tensors["pos_embed"], (4, 4), (8, 6)))
    with pytest.raises(ValueError, match=r"18 missing from the file: blocks_3/"):
        tiny(weights=path, depth=4)
    with pytest.raises(ValueError, match=r"18 not in the model: blocks_2/"):
        tiny(weights=path, depth=2)


def test_keras_files_of_a_trained_model(tiny, golden_case, same_weights, tmp_path):
    # Such files also contain optimizer and seed generator states.
    model = tiny(depth=1, drop_path=0.1)
    model.compile(keras.optimizers.AdamW(1e-3), "mse", metrics=["mae"])
    model.fit(golden_case["input"], golden_case["logits"], verbose=0)
    model.save_weights(tmp_path / "m.weights.h5")
    model.save(tmp_path / "m.keras")
    same_weights(tiny(depth=1, weights=tmp_path / "m.weights.h5"), model)
    same_weights(tiny(depth=1, weights=tmp_path / "m.keras"), model)


def test_rectangular_keras_weights_keep_their_grid(tiny, same_weights, tmp_path):
    # 2 x 8 and 4 x 4 are the same number of entries; here the models are equal.
    model = tiny(input_shape=(16, 64, 3))
    model.save_weights(tmp_path / "m.weights.h5")
    same_weights(tiny(input_shape=(16, 64, 3), weights=tmp_path / "m.weights.h5"), model)


def test_foreign_files(unused, tmp_path):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file["vars/kernel"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"m\.weights\.h5.*another architecture"):
        load_weights(unused, tmp_path / "m.weights.h5")
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as file:
        file.writestr("readme.txt", "nothing")
    with pytest.raises(ValueError, match=r"m\.keras"):
        load_weights(unused, tmp_path / "m.keras")


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"x")
    for path, error, said in (
        (str(tmp_path / "absent.safetensors"), FileNotFoundError, r"weights='.*absent"),
        ("absent.pth", FileNotFoundError, "no such file"),
        (tmp_path / "folder.keras", IsADirectoryError, r"a folder without config\.json"),
        (tmp_path / "model.onnx", ValueError, r"\.safetensors, \.pth"),
    ):
        with pytest.raises(error, match=said):
            resolve(path)
