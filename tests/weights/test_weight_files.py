"""Files of every format, valid and invalid."""

import argparse
import collections
import json
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
from harness import numbers
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny import SAVERS, make_tiny, weights_of

import keras_vitx as kv
from keras_vitx.weights import (
    load_weights,
    resample,
    resolve,
    save_safetensors,
    save_torch,
    to_checkpoint,
)

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
    "parameters": lambda torch, s: {n: torch.nn.Parameter(value) for n, value in s.items()},
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


@pytest.mark.parametrize("content", [[1, 2], {"weight": "text"}, {"epoch": 3}])
def test_torch_files_of_something_else(torch, unused, tmp_path, content):
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"file\.pth.*not a plain checkpoint"):
        load_weights(unused, tmp_path / "file.pth")


def test_without_torch_the_extra_is_named(unused, tmp_path, monkeypatch):
    (tmp_path / "file.pth").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    for call in (load_weights, save_torch):
        with pytest.raises(ImportError, match='extra "torch"'):
            call(unused, tmp_path / "file.pth")


def test_prefixed_safetensors(tiny, golden_model, golden_tensors, same_weights, tmp_path):
    save_file(prefixed(golden_tensors, "model.module."), tmp_path / "p.safetensors")
    same_weights(tiny(weights=tmp_path / "p.safetensors"), golden_model)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_bfloat16(torch, state, tiny, golden_tensors, tmp_path, suffix):
    from safetensors.torch import save_file

    path = tmp_path / f"half{suffix}"
    half = {name: value.to(torch.bfloat16) for name, value in state.items()}
    (torch.save if suffix == ".pth" else save_file)(half, path)
    found = weights_of(tiny(weights=path))["norm/gamma"]
    np.testing.assert_allclose(found, golden_tensors["norm.weight"], rtol=1e-2)


def test_what_a_file_of_ours_restores(tiny, golden_file, same_weights, tmp_path):
    model = tiny(weights=golden_file, name="mine")
    model.class_names = tuple("abcdefghij")
    model.preprocessing = {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.5, np.float32(0.5)],
        "crop_ratio": 0.875,
        "interpolation": "bilinear",
    }
    path = tmp_path / "ours.safetensors"
    save_safetensors(model, path, metadata={"provenance": "a test"})
    loaded = tiny(weights=path)
    same_weights(loaded, model)
    assert tuple(loaded.class_names) == model.class_names
    assert loaded.preprocessing == model.preprocessing
    other = tiny(weights=path, classes=7)
    assert other.class_names is None
    assert other.preprocessing.crop_ratio == 0.875
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert (metadata["provenance"], metadata["format"]) == ("a test", "pt")
    assert (json.loads(metadata["model"]), json.loads(metadata["grid"])) == ("mine", [4, 4])


def test_half_the_size(tiny, golden_model, tmp_path):
    sizes = {}
    for dtype in ("float16", "float32"):
        save_safetensors(golden_model, tmp_path / f"{dtype}.safetensors", dtype=dtype)
        sizes[dtype] = (tmp_path / f"{dtype}.safetensors").stat().st_size
    assert sizes["float16"] < 0.6 * sizes["float32"]
    found = weights_of(tiny(weights=tmp_path / "float16.safetensors"))
    for name, array in weights_of(golden_model).items():
        assert found[name].dtype == np.float32
        kept = array if array.ndim < 2 else array.astype("float16")
        np.testing.assert_array_equal(found[name], kept, err_msg=name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "ours.bin"}, "path"),
        ({"dtype": "int8"}, "int8"),
        ({"metadata": {"epoch": 3}}, "metadata.*3"),
        ({"metadata": {"grid": "[2, 2]"}}, "grid"),
        ({"dtype": "float16"}, r"head\.weight"),
    ],
)
def test_wrong_arguments_leave_no_file(tiny, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    model = tiny()
    kernel = model.get_layer("head").kernel
    kernel.assign(np.full(kernel.shape, 1e6, "float32"))
    with pytest.raises(ValueError, match=words):
        save_safetensors(model, **{"path": "ours.safetensors", **arguments})
    with pytest.raises(ValueError, match=r"\.pth"):
        save_torch(model, "ours.safetensors")
    assert not list(tmp_path.iterdir())


ABOUT = {
    "model": "a",
    "family": "CaiT",
    "grid": None,
    "class_names": None,
    "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3},
}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("grid", [0, 4], "`grid`"),
        ("grid", [float("inf"), 4], "`grid`"),
        ("grid", "four", "`grid`"),
        ("class_names", 5, "`class_names`"),
        ("class_names", [["a"]], "`class_names`"),
        ("class_names", ["a"], "names 1 classes but has weights for 10"),
        ("preprocessing", {"std": [0.5] * 3}, "`preprocessing`.*`mean`"),
        ("preprocessing", {"mean": [0.5] * 3, "std": "abc"}, "`std`"),
        ("preprocessing", [0.5], "`preprocessing`"),
        ("model", None, "`model`"),
    ],
)
@pytest.mark.parametrize("kind", ["safetensors", "keras"])
def test_a_wrong_description(unused, golden_tensors, repacked, tmp_path, kind, key, value, said):
    about = {**ABOUT, key: value}
    path = tmp_path / f"m.{kind}"
    if kind == "safetensors":
        metadata = {key: json.dumps(value) for key, value in about.items()}
        save_file(golden_tensors, path, {"library": "keras_vitx", **metadata})
    else:
        layers = [{"config": {"grid": about["grid"]}}]
        repacked(path, {"config": {**about, "name": about["model"], "layers": layers}})
    with pytest.raises(ValueError, match=rf"m\.{kind}.*{said}") as error:
        load_weights(unused, path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("grid", [{}, {"grid": "[" * 9999}, {"grid": "four"}])
def test_damaged_metadata(unused, golden_tensors, tmp_path, grid):
    metadata = {key: json.dumps(value) for key, value in ABOUT.items() if key != "grid"}
    save_file(
        golden_tensors, tmp_path / "m.safetensors", {"library": "keras_vitx"} | metadata | grid
    )
    with pytest.raises(ValueError, match=r"m\.safetensors.*metadata can't be used"):
        load_weights(unused, tmp_path / "m.safetensors")


@pytest.fixture(scope="module")
def keras_members(golden_model, tmp_path_factory):
    """The members of the golden model's `.keras` file."""
    path = tmp_path_factory.mktemp("keras") / "m.keras"
    golden_model.save(path)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture
def repacked(keras_members):
    """Write the golden model's `.keras` file with another config, repacked as a user might."""

    def write(path, config):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in {**keras_members, "config.json": json.dumps(config)}.items():
                file.writestr(name, content)
        return path

    return write


@pytest.mark.parametrize("config", [[], {}, {"config": []}, {"config": {"layers": 3}}])
def test_configs_of_no_model(unused, repacked, tmp_path, config):
    with pytest.raises(ValueError, match=r"m\.keras.*config\.json"):
        load_weights(unused, repacked(tmp_path / "m.keras", config))


def test_keras_files_are_not_built(
    golden_model, keras_members, repacked, tiny, same_weights, tmp_path
):
    config = json.loads(keras_members["config.json"])
    # If it were built, an unknown layer would be an error.
    config["config"]["layers"][2]["class_name"] = "Unknown"
    config["config"]["layers"][2]["config"]["dim"] = 1 << 42
    config["config"]["class_names"] = list("abcdefghij")
    loaded = tiny(weights=repacked(tmp_path / "m.keras", config))
    same_weights(loaded, golden_model)
    assert tuple(loaded.class_names) == tuple("abcdefghij")


@pytest.mark.parametrize("suffix", SAVERS)
def test_every_format_in_other_models(
    tiny, golden_model, golden_tensors, same_weights, tmp_path, suffix
):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = tmp_path / f"m{suffix}"
    SAVERS[suffix](golden_model, path)
    same_weights(tiny(weights=path), golden_model)
    same_weights(tiny(weights=path, classes=7), golden_model, but="head")
    same_weights(tiny(weights=path, include_top=False), golden_model, but="head")
    for grid in ((8, 6), (2, 3)):
        model = tiny(weights=path, input_shape=(8 * grid[0], 8 * grid[1], 3))
        found = weights_of(model)["pos_embed/embeddings"]
        np.testing.assert_array_equal(found, resample(golden_tensors["pos_embed"], (4, 4), grid))
    with pytest.raises(ValueError, match=r"18 missing from the file: blocks[._]3"):
        tiny(weights=path, depth=4)
    with pytest.raises(ValueError, match=r"18 not in the model: blocks[._]2"):
        tiny(weights=path, depth=2)


@keras.saving.register_keras_serializable(package="tests")
class Outer(keras.Model):
    """Makes a model of the zoo in its `build`."""

    def build(self, input_shape):
        self.inner = make_tiny()
        self.inner.build(input_shape)

    def call(self, images):
        return self.inner(images)


def scoped(make, where):
    if where == "name_scope":
        with keras.name_scope("outer"), keras.name_scope("inner"):
            return make()
    outer = Outer()
    outer.build((None, 32, 32, 3))
    return outer.inner


@pytest.mark.parametrize("where", ["name_scope", "build"])
@pytest.mark.parametrize("suffix", SAVERS)
def test_names_do_not_depend_on_scopes(tiny, golden_model, tmp_path, suffix, where):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = tmp_path / f"m{suffix}"
    SAVERS[suffix](golden_model, path)
    inner = scoped(tiny, where)
    assert inner.weights[0].path.startswith("outer")
    load_weights(inner, path)
    SAVERS[suffix](inner, path)
    loaded = tiny(weights=path)
    for one, other in zip(loaded.weights, golden_model.weights, strict=True):
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v) for v in (one, other)))
    kv.save(inner, tmp_path / "folder")
    assert (tmp_path / "folder" / "model.safetensors").exists()
    assert to_checkpoint(kv.load(tmp_path / "folder")).keys() == to_checkpoint(golden_model).keys()


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_keras_files_of_a_trained_model(tiny, same_weights, tmp_path, suffix):
    # Such files also contain optimizer and seed generator states. 2 x 8 and 4 x 4 patches are the
    # same number of entries; here the models are equal.
    arguments = {"depth": 1, "input_shape": (16, 64, 3)}
    model = tiny(drop_path=0.1, **arguments)
    model.compile(keras.optimizers.AdamW(1e-3), "mse", metrics=["mae"])
    model.fit(numbers((2, 16, 64, 3)), numbers((2, 10)), verbose=0)
    SAVERS[suffix](model, tmp_path / f"m{suffix}")
    same_weights(tiny(weights=tmp_path / f"m{suffix}", **arguments), model)


@pytest.mark.parametrize("suffix", SAVERS)
@pytest.mark.parametrize("content", [b"", b"<html>no</html>" * 99])
def test_files_of_another_format(unused, tmp_path, suffix, content):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = tmp_path / f"m{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"weights=.*{path.name}") as caught:
        load_weights(unused, path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_foreign_files(unused, tmp_path):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file["vars/kernel"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"m\.weights\.h5.*another architecture"):
        load_weights(unused, tmp_path / "m.weights.h5")
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as file:
        file.writestr("readme.txt", "nothing")
    with pytest.raises(ValueError, match=r"m\.keras.*holds no config\.json"):
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
