"""Files of every format, valid and invalid."""

import argparse
import builtins
import collections
import json
import os
import pickle
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


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".pth.tar"])
def test_plain_torch_files(torch, state, tiny, golden_model, same_weights, tmp_path, suffix):
    torch.save(state, tmp_path / f"file{suffix}")
    same_weights(tiny(weights=tmp_path / f"file{suffix}"), golden_model)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"model": prefixed(s, "module.")},
        lambda s: {"state_dict": s, "epoch": 3, "arch": "cait"},
        lambda s: {"state_dict": prefixed(s, "module.model."), "optimizer": {"state": {}}},
        lambda s: {"model": prefixed(s, "wrong."), "model_ema": s, "args": argparse.Namespace(a=1)},
        lambda s: {"state_dict": prefixed(s, "wrong."), "state_dict_ema": prefixed(s, "model.")},
        lambda s: {"model": {"state_dict": prefixed(s, "_orig_mod.module.")}, "model_ema": None},
    ],
)
def test_wrapped_torch_files(torch, state, tiny, golden_model, same_weights, tmp_path, wrap):
    torch.save(wrap(state), tmp_path / "file.pth")
    same_weights(tiny(weights=tmp_path / "file.pth"), golden_model)


def test_torch_file_of_the_old_format(torch, state, tiny, golden_model, same_weights, tmp_path):
    torch.save(state, tmp_path / "file.pth", _use_new_zipfile_serialization=False)
    same_weights(tiny(weights=tmp_path / "file.pth"), golden_model)


def test_half_precision_torch_file(torch, state, tiny, golden_tensors, tmp_path, weights_of):
    torch.save({n: v.to(torch.bfloat16) for n, v in state.items()}, tmp_path / "file.pth")
    found = weights_of(tiny(weights=tmp_path / "file.pth"))["norm/gamma"]
    np.testing.assert_allclose(found, golden_tensors["norm.weight"], rtol=1e-2)


def test_bfloat16_safetensors(torch, state, tiny, golden_tensors, tmp_path, weights_of):
    from safetensors.torch import save_file

    save_file({n: v.to(torch.bfloat16) for n, v in state.items()}, tmp_path / "b.safetensors")
    found = weights_of(tiny(weights=tmp_path / "b.safetensors"))["norm/gamma"]
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


class Harm:
    """Calls something when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("kind", ["zip", "old", "plain"])
@pytest.mark.parametrize("harm", ["mkdir", "system", "eval"])
def test_a_pickle_with_code_is_refused(torch, state, unused, tmp_path, kind, harm):
    folder = tmp_path / "harmed"
    content = {
        "mkdir": Harm(os.mkdir, str(folder)),
        "system": Harm(os.system, f"mkdir {folder}"),
        # Nested in an allowed type.
        "eval": Harm(
            collections.OrderedDict, [("a", Harm(eval, f"__import__('os').mkdir({folder!r})"))]
        ),
    }[harm]
    if kind == "plain":
        (tmp_path / "file.pth").write_bytes(pickle.dumps(content))
    else:
        content = {"model": state, "extra": content}
        torch.save(content, tmp_path / "file.pth", _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(ValueError, match=r"file\.pth.*refused.*code"):
        load_weights(unused, tmp_path / "file.pth")
    assert not folder.exists()


def test_a_plain_pickle_without_code_is_refused(torch, unused, tmp_path):
    (tmp_path / "file.pth").write_bytes(pickle.dumps({"weight": [1.0]}))
    with pytest.raises(ValueError, match=r"file\.pth.*refused.*neither of PyTorch's formats"):
        load_weights(unused, tmp_path / "file.pth")


def test_what_training_scripts_keep_beside_the_weights(
    torch, state, tiny, golden_model, same_weights, tmp_path
):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    extra = {
        "optimizer": optimizer.state_dict(),
        "scaler": {"scale": 65536.0},
        "args": argparse.Namespace(lr=1e-3, device=torch.device("cpu"), half=torch.bfloat16),
        "seen": collections.Counter("abc"),
        "set": {1, 2},
        "bytes": b"\0\xff",
        "rng": torch.get_rng_state(),
        "size": torch.Size([2, 3]),
    }
    torch.save({**extra, "model": state}, tmp_path / "file.pth")
    same_weights(tiny(weights=tmp_path / "file.pth"), golden_model)
    parameters = {name: torch.nn.Parameter(value) for name, value in state.items()}
    torch.save(
        {**extra, "model": parameters}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )
    same_weights(tiny(weights=tmp_path / "old.pth"), golden_model)


@pytest.mark.parametrize("link", ["soft", "external", "circle", "external data", "virtual"])
def test_h5_files_that_lead_elsewhere(unused, tmp_path, link):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["0"] = np.zeros((24, 10), "float32")
    (tmp_path / "secret.bin").write_bytes(bytes(960))
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        group = file.create_group("layers/dense/vars")
        group.attrs["name"] = "head"
        if link == "soft":
            group["0"] = h5py.SoftLink("/layers")
        elif link == "external":
            group["0"] = h5py.ExternalLink("secret.h5", "0")
        elif link == "circle":
            file["layers/dense/again"] = file["layers"]
        elif link == "external data":
            space = [(str(tmp_path / "secret.bin"), 0, 960)]
            group.create_dataset("0", (24, 10), "float32", external=space)
        else:
            layout = h5py.VirtualLayout((24, 10), "float32")
            layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "0", (24, 10))
            group.create_virtual_dataset("0", layout)
    with pytest.raises(ValueError, match=r"m\.weights\.h5.*refused"):
        load_weights(unused, tmp_path / "m.weights.h5")


def test_a_checkpoint_that_holds_itself(torch, unused, tmp_path):
    content = {}
    content["model"] = content
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


@pytest.mark.parametrize(("fact", "value", "said"), WRONG_FACTS)
@pytest.mark.parametrize("kind", ["safetensors", "keras"])
def test_wrong_facts_about_the_model(
    unused, golden_tensors, keras_members, tmp_path, kind, fact, value, said
):
    path, facts = tmp_path / f"m.{kind}", {**FACTS, fact: value}
    if kind == "safetensors":
        metadata = {key: json.dumps(value) for key, value in facts.items()}
        save_file(golden_tensors, path, {"library": "keras_vitx", **metadata})
    else:
        config = json.loads(keras_members["config.json"])
        layers = [{"config": {"grid": facts["grid"]}}]
        config["config"].update({**facts, "name": facts["model"], "layers": layers})
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("config.json", json.dumps(config))
            file.writestr("model.weights.h5", keras_members["model.weights.h5"])
    with pytest.raises(ValueError, match=rf"m\.{kind}.*{said}") as error:
        load_weights(unused, path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("change", ["no grid", "deep"])
def test_metadata_that_is_cut_off(unused, golden_tensors, tmp_path, change):
    metadata = {key: json.dumps(value) for key, value in FACTS.items()}
    metadata["grid"] = "[" * 9999
    if change == "no grid":
        del metadata["grid"]
    save_file(golden_tensors, tmp_path / "m.safetensors", {"library": "keras_vitx", **metadata})
    with pytest.raises(ValueError, match=r"m\.safetensors") as error:
        load_weights(unused, tmp_path / "m.safetensors")
    assert change == "deep" or "`grid` is missing" in str(error.value)


@pytest.fixture(scope="module")
def keras_members(golden_model, tmp_path_factory):
    """The members of the golden model's `.keras` file."""
    path = tmp_path_factory.mktemp("keras") / "m.keras"
    golden_model.save(path)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize("config", [[], {}, {"config": []}, {"config": {"layers": 3}}])
def test_configs_of_no_model(unused, keras_members, tmp_path, config):
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as file:
        file.writestr("config.json", json.dumps(config))
        file.writestr("model.weights.h5", keras_members["model.weights.h5"])
    with pytest.raises(ValueError, match=r"m\.keras.*config\.json"):
        load_weights(unused, tmp_path / "m.keras")


def test_keras_files_are_not_built(golden_model, keras_members, tiny, same_weights, tmp_path):
    config = json.loads(keras_members["config.json"])
    # If it were built, an unknown layer would be an error.
    config["config"]["layers"][2]["class_name"] = "Unknown"
    config["config"]["layers"][2]["config"]["dim"] = 1 << 42
    config["config"]["class_names"] = list("abcdefghij")
    # Unpacked and packed again, as a user might.
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {**keras_members, "config.json": json.dumps(config)}.items():
            file.writestr(name, content)
    loaded = tiny(weights=tmp_path / "m.keras")
    same_weights(loaded, golden_model)
    assert tuple(loaded.class_names) == tuple("abcdefghij")


@pytest.mark.parametrize("content", [[1, 2], {"weight": "text"}, {"epoch": 3}])
def test_torch_files_of_something_else(torch, unused, tmp_path, content):
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"file\.pth.*no plain checkpoint"):
        load_weights(unused, tmp_path / "file.pth")


@pytest.fixture
def saved(golden_model, golden_file, torch, state, tmp_path):
    """Write the golden weights as a file with a suffix."""

    def write(suffix):
        path = tmp_path / f"saved{suffix}"
        if suffix == ".pth":
            torch.save(state, path)
        elif suffix == ".safetensors":
            path.write_bytes(golden_file.read_bytes())
        else:
            save = golden_model.save if suffix == ".keras" else golden_model.save_weights
            save(path)
        return path

    return write


KINDS = [".safetensors", ".pth", ".weights.h5", ".keras"]


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_damaged_files(saved, unused, suffix, damage):
    path = saved(suffix)
    content = path.read_bytes()
    path.write_bytes(
        {"truncated": content[: len(content) * 2 // 3], "text": b"<html>no</html>" * 99}.get(
            damage, b""
        )
    )
    with pytest.raises(ValueError, match="weights=") as caught:
        load_weights(unused, path)
    assert path.name in str(caught.value)
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


def test_a_foreign_h5_file(unused, tmp_path):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file["vars/kernel"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"m\.weights\.h5.*another architecture"):
        load_weights(unused, tmp_path / "m.weights.h5")


def test_a_zip_that_is_no_keras_file(unused, tmp_path):
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as file:
        file.writestr("readme.txt", "nothing")
    with pytest.raises(ValueError, match=r"m\.keras"):
        load_weights(unused, tmp_path / "m.keras")


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"weights='.*absent\.safetensors'"):
        resolve(str(tmp_path / "absent.safetensors"))
    with pytest.raises(FileNotFoundError, match=r"no such file"):
        resolve("absent.pth")
    with pytest.raises(IsADirectoryError, match=r"a folder without config\.json"):
        resolve(tmp_path / "folder.keras")
    with pytest.raises(ValueError, match=r"\.safetensors, \.pth"):
        resolve(tmp_path / "model.onnx")
