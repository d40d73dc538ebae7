"""Files of every format, valid and invalid."""

import argparse
import collections
import datetime
import decimal
import enum
import functools
import json
import pathlib
import sys
import types
import zipfile
from functools import partial

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


class Phase(enum.Enum):
    """A class of a user's script."""

    TRAIN = "train"


class Values(list):
    """A list of a user's class."""


class Settings(dict):
    """A dictionary with attributes, as Lightning and yacs have."""


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
        "best": np.float64(0.8),
        "flag": np.bool_(True),
        "history": np.arange(3.0),
        "path": pathlib.Path("runs/1"),
        "windows": pathlib.PureWindowsPath("C:/runs"),
        "date": [datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(1)],
        "ordered": collections.OrderedDict(a=collections.defaultdict(list, b=[1])),
        "phase": Phase.TRAIN,
        "list": Values([1, 2]),
        "settings": Settings(lr=1e-3, layer=functools.partial(dict, a=1)),
        "simple": types.SimpleNamespace(a=decimal.Decimal("0.1")),
        "kind": [int, complex(1, 2), slice(1), range(3), frozenset("a")],
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
    "layers": lambda torch, s: {
        "args": Settings(norm=functools.partial(torch.nn.LayerNorm, eps=1e-6), act=torch.nn.GELU),
        "model": s,
        "criterion": torch.nn.Linear(2, 2),
    },
    "net": lambda torch, s: prefixed(s, "net."),
    "module.model": lambda torch, s: {"weights": prefixed(s, "module.model.")},
    "averaged": lambda torch, s: {
        "n_averaged": torch.tensor(3),
        **prefixed(s, "module."),
    },
    "lightning": lambda torch, s: {
        "state_dict": {**prefixed(s, "backbone."), "criterion.weight": torch.ones(10)},
        "pytorch-lightning_version": "2.5",
        "hyper_parameters": Settings(lr=1e-3),
        "callbacks": {"best": {"best_model_score": torch.tensor(0.8)}},
    },
    "the same twice": lambda torch, s: {"student": s, "teacher": s},
    "parameters": lambda torch, s: {n: torch.nn.Parameter(value) for n, value in s.items()},
}


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        *((content, ".pth") for content in TORCH_FILES),
        # The old form keeps the source text of layers, which is refused.
        *((content, ".old.pth") for content in TORCH_FILES if content != "layers"),
        *(("plain", suffix) for suffix in (".pt", ".bin", ".pth.tar", ".ckpt")),
    ],
)
def test_torch_files(torch, state, tiny, golden_model, same_weights, tmp_path, content, suffix):
    path = tmp_path / f"file{suffix}"
    content = TORCH_FILES[content](torch, state)
    torch.save(content, path, _use_new_zipfile_serialization=suffix != ".old.pth")
    same_weights(tiny(weights=path), golden_model)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("nested", [True, False])
def test_weights_that_a_file_holds_twice(torch, unused, state, tmp_path, suffix, nested):
    from safetensors.torch import save_file

    copies = {name: {n: v.clone() for n, v in state.items()} for name in ("teacher", "student")}
    content = {f"{one}.{name}": v for one in copies for name, v in copies[one].items()}
    path = tmp_path / f"m{suffix}"
    if suffix == ".pth":
        torch.save(copies if nested else content, path)
    else:
        save_file(content, path)
    words = r"must hold the weights once\. Received: student\.\*, teacher\.\*\. Save the ones"
    with pytest.raises(ValueError, match=words):
        load_weights(unused, path)


@pytest.mark.parametrize("whole", [True, False])
def test_torch_files_of_whole_modules(torch, unused, tmp_path, whole):
    module = torch.nn.Linear(2, 2)
    torch.save(module if whole else {"model": module, "epoch": 3}, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"holds.*modules\.linear\.Linear.*state_dict") as caught:
        load_weights(unused, tmp_path / "file.pth")
    assert "\x1b" not in str(caught.value)


def test_torch_files_that_say_how_to_save_them(torch, unused, state, tmp_path):
    path = tmp_path / "file.pth"
    torch.save(state, path, pickle_protocol=4)
    with pytest.raises(ValueError, match=r"pickle protocol is 4.*default protocol"):
        load_weights(unused, path)
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(path)
    with pytest.raises(ValueError, match=r"TorchScript.*state_dict"):
        load_weights(unused, path)


def quantized(kind, model, path):
    if kind == "keras":
        model.quantize("int8")
        model.save_weights(path)
    elif kind == "torch":
        import torch

        state = {name: torch.tensor(array) for name, array in to_checkpoint(model).items()}
        for name, value in state.items():
            if value.ndim == 2:
                state[name] = torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)
        torch.save(state, path)
    else:
        state = to_checkpoint(model)
        for name, value in state.items():
            state[name] = value.astype("int8") if value.ndim == 2 else value
        save_file(state, path)


@pytest.mark.parametrize(
    ("kind", "suffix", "dtype"),
    [("keras", ".weights.h5", "int8"), ("torch", ".pth", "qint8"), ("", ".safetensors", "I8")],
)
def test_quantized_files_say_so(tiny, unused, tmp_path, kind, suffix, dtype):
    if kind == "torch":
        pytest.importorskip("torch")
    quantized(kind, tiny(), tmp_path / f"m{suffix}")
    with pytest.raises(ValueError, match=rf"It is quantized \({dtype}\)"):
        load_weights(unused, tmp_path / f"m{suffix}")


def test_keras_directories(tiny, golden_model, same_weights, tmp_path):
    keras.saving.save_model(golden_model, tmp_path / "model", zipped=False)
    same_weights(tiny(weights=tmp_path / "model"), golden_model)
    same_weights(kv.load(tmp_path / "model"), golden_model)
    images = keras.Input((32, 32, 3))
    outer = keras.Model(images, keras.layers.Dense(2)(tiny()(images)))
    outer.save(tmp_path / "outer", zipped=False)
    loaded = kv.load(tmp_path / "outer")
    for one, other in zip(loaded.weights, outer.weights, strict=True):
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v) for v in (one, other)))
    (tmp_path / "model" / "model.weights.h5").unlink()
    for load in (partial(load_weights, golden_model), kv.load):
        with pytest.raises(ValueError, match=r"holds no model\.weights\.h5"):
            load(tmp_path / "model")


def test_a_model_inside_a_file(tiny, golden_model, same_weights, tmp_path):
    images = keras.Input((32, 32, 3))
    outer = keras.Model(images, keras.layers.Dense(2)(golden_model(images)))
    outer.save_weights(tmp_path / "outer.weights.h5")
    same_weights(tiny(weights=tmp_path / "outer.weights.h5"), golden_model)


def test_sharded_weights(tiny, golden_model, same_weights, tmp_path):
    path = tmp_path / "m.weights.json"
    # Shards of 20 kB, which split layers.
    golden_model.save_weights(path, max_shard_size=2e-5)
    assert len(list(tmp_path.glob("*.weights.h5"))) > 5
    same_weights(tiny(weights=path), golden_model)
    index = json.loads(path.read_text())
    for name, words in (("../m.weights.h5", "refused"), ("absent.weights.h5", "lacks 'absent")):
        index["weight_map"]["/vars"] = ["m_00000.weights.h5", name]
        path.write_text(json.dumps(index))
        with pytest.raises(ValueError, match=rf"m\.weights\.json.*{words}"):
            load_weights(golden_model, path)


def test_the_legacy_format_is_refused(unused, tmp_path):
    path = tmp_path / "m.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(path)
    checkpoint.set_model(unused)
    for save in (unused.save, lambda path: checkpoint.on_epoch_end(0, {})):
        with pytest.raises(ValueError, match=r"`filepath` must end in \.keras.*m\.h5'.*legacy"):
            save(path)
    assert not path.exists()
    path.write_bytes(b"x")
    for load in (partial(load_weights, unused), kv.load):
        with pytest.raises(ValueError, match=r"m\.h5.*legacy format"):
            load(path)


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
    kv.save(inner, tmp_path / "directory")
    assert (tmp_path / "directory" / "model.safetensors").exists()
    assert (
        to_checkpoint(kv.load(tmp_path / "directory")).keys() == to_checkpoint(golden_model).keys()
    )


@keras.saving.register_keras_serializable(package="tests")
class Unnamed(keras.layers.Layer):
    """A user's MLP, whose layers have the names that Keras gives them."""

    def __init__(self, units=24, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.wide, self.narrow = keras.layers.Dense(units), keras.layers.Dense(units)

    def build(self, shape):
        self.wide.build(shape)
        self.narrow.build(shape)

    def call(self, x):
        return self.narrow(self.wide(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@pytest.mark.parametrize("suffix", [*SAVERS, "directory"])
def test_layers_without_names(tiny, tmp_path, suffix):
    if suffix == ".pth":
        pytest.importorskip("torch")
    changes = {"mlp": lambda index: Unnamed(), "depth": 2}
    model, path = tiny(**changes), tmp_path / f"m{suffix}"
    (kv.save if suffix == "directory" else SAVERS[suffix])(model, path)
    loaded = [tiny(weights=path, **changes)]
    if suffix in ("directory", ".keras"):
        loaded.append(kv.load(path, {"tests>Unnamed": Unnamed}))
    for each in loaded:
        for one, other in zip(each.weights, model.weights, strict=True):
            np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v) for v in (one, other)))


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
    (tmp_path / "directory.keras").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"x")
    for path, error, said in (
        (str(tmp_path / "absent.safetensors"), FileNotFoundError, r"weights='.*absent"),
        ("absent.pth", FileNotFoundError, "no such file"),
        (tmp_path / "directory.keras", IsADirectoryError, r"a directory without config\.json"),
        (tmp_path / "model.onnx", ValueError, r"\.safetensors, \.pth"),
    ):
        with pytest.raises(error, match=said):
            resolve(path)
