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
from harness import FORMATS, numbers, same_weights, save
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny import make_tiny, positions_of

import keras_vitx as kv
from keras_vitx.weights import load_weights, resample, save_safetensors, save_torch, to_checkpoint

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
    "ema": lambda torch, s: {"model": {n: 2 * v for n, v in s.items()}, "ema": {"module": s}},
    "nested": lambda torch, s: {
        "model": {"state_dict": prefixed(s, "_orig_mod.module.")},
        "model_ema": None,
    },
    "extras": lambda torch, s: {**extras(torch), "model": s},
    "layers": lambda torch, s: {"model": s, "criterion": torch.nn.Linear(2, 2)},
    "net": lambda torch, s: prefixed(s, "net."),
    "averaged": lambda torch, s: {"n_averaged": torch.tensor(3), **prefixed(s, "module.")},
    "lightning": lambda torch, s: {
        "state_dict": {**prefixed(s, "backbone."), "criterion.weight": torch.ones(10)},
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
def test_torch_files(torch, state, golden_model, tmp_path, content, suffix):
    path = tmp_path / f"file{suffix}"
    content = TORCH_FILES[content](torch, state)
    torch.save(content, path, _use_new_zipfile_serialization=suffix != ".old.pth")
    same_weights(make_tiny(weights=path), golden_model)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_that_a_file_holds_twice(torch, unused, state, tmp_path, suffix):
    from safetensors.torch import save_file

    copies = ("teacher.", "student.")
    content = {one + name: v.clone() for one in copies for name, v in state.items()}
    (torch.save if suffix == ".pth" else save_file)(content, tmp_path / f"m{suffix}")
    words = r"must hold the weights once\. Received: student\.\*, teacher\.\*\. Save the ones"
    with pytest.raises(ValueError, match=words):
        load_weights(unused, tmp_path / f"m{suffix}")
    for one in copies:  # Nor is one chosen where both lack a weight.
        del content[f"{one}norm.bias"]
    (torch.save if suffix == ".pth" else save_file)(content, tmp_path / f"m{suffix}")
    with pytest.raises(ValueError, match=words):
        load_weights(unused, tmp_path / f"m{suffix}", strict=False)


def script(torch, path):
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(path)


OTHER_TORCH_FILES = [
    (r"holds.*modules\.linear\.Linear.*state_dict", lambda t, p: t.save(t.nn.Linear(2, 2), p)),
    (r"holds.*modules\.linear\.Linear.*", lambda t, p: t.save({"model": t.nn.Linear(2, 2)}, p)),
    ("not a plain checkpoint", lambda t, p: t.save({"weight": "text"}, p)),
    (r"protocol is 4.*default", lambda t, p: t.save({"a": t.ones(1)}, p, pickle_protocol=4)),
    (r"TorchScript.*state_dict", script),
]


@pytest.mark.parametrize(("words", "write"), OTHER_TORCH_FILES)
def test_torch_files_of_something_else(torch, unused, tmp_path, words, write):
    write(torch, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=rf"file\.pth.*{words}") as caught:
        load_weights(unused, tmp_path / "file.pth")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".weights.h5", "int8"), (".pth", "qint8"), (".safetensors", "I8")]
)
def test_quantized_files_say_so(unused, tmp_path, suffix, dtype):
    model, path = make_tiny(), tmp_path / f"m{suffix}"
    tensors = {name: value for name, value in to_checkpoint(model).items() if value.ndim == 2}
    if suffix == ".weights.h5":
        model.quantize("int8")
        model.save_weights(path)
    elif suffix == ".safetensors":
        save_file({name: value.astype("int8") for name, value in tensors.items()}, path)
    else:
        torch = pytest.importorskip("torch")
        rounded = partial(torch.quantize_per_tensor, scale=0.1, zero_point=0, dtype=torch.qint8)
        torch.save({name: rounded(torch.tensor(v)) for name, v in tensors.items()}, path)
    with pytest.raises(ValueError, match=rf"It is quantized \({dtype}\)"):
        load_weights(unused, path)


def around(model):
    """Make a model with another inside."""
    images = keras.Input((32, 32, 3))
    return keras.Model(images, keras.layers.Dense(2)(model(images)))


def test_keras_directories(golden_model, tmp_path):
    keras.saving.save_model(golden_model, tmp_path / "model", zipped=False)
    same_weights(make_tiny(weights=tmp_path / "model"), golden_model)
    same_weights(kv.load(tmp_path / "model"), golden_model)
    outer = around(make_tiny())
    outer.save(tmp_path / "outer", zipped=False)
    same_weights(kv.load(tmp_path / "outer"), outer)
    (tmp_path / "model" / "model.weights.h5").unlink()
    for load in (partial(load_weights, golden_model), kv.load):
        with pytest.raises(ValueError, match=r"holds no model\.weights\.h5"):
            load(tmp_path / "model")


def test_a_model_inside_a_file(golden_model, tmp_path):
    around(golden_model).save_weights(tmp_path / "outer.weights.h5")
    same_weights(make_tiny(weights=tmp_path / "outer.weights.h5"), golden_model)


def test_sharded_weights(golden_model, tmp_path):
    path = tmp_path / "m.weights.json"
    # Shards of 20 kB, which split layers.
    golden_model.save_weights(path, max_shard_size=2e-5)
    assert len(list(tmp_path.glob("*.weights.h5"))) > 5
    same_weights(make_tiny(weights=path), golden_model)
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
    for write in (unused.save, lambda path: checkpoint.on_epoch_end(0, {})):
        with pytest.raises(ValueError, match=r"`filepath` must end in \.keras.*m\.h5'.*legacy"):
            write(path)
    assert not path.exists()
    path.write_bytes(b"x")
    for load in (partial(load_weights, unused), kv.load):
        with pytest.raises(ValueError, match=r"m\.h5.*legacy format"):
            load(path)


def test_without_torch_the_extra_is_named(unused, tmp_path, monkeypatch):
    (tmp_path / "file.pth").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    for call in (load_weights, save_torch):
        with pytest.raises(ImportError, match='extra "torch"'):
            call(unused, tmp_path / "file.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_bfloat16_behind_a_prefix(torch, state, golden_tensors, tmp_path, suffix):
    from safetensors.torch import save_file

    path = tmp_path / f"half{suffix}"
    half = {f"model.module.{name}": value.to(torch.bfloat16) for name, value in state.items()}
    (torch.save if suffix == ".pth" else save_file)(half, path)
    found = to_checkpoint(make_tiny(weights=path))["norm.weight"]
    np.testing.assert_allclose(found, golden_tensors["norm.weight"], rtol=1e-2)


def test_what_a_file_of_ours_restores(golden_file, tmp_path):
    model = make_tiny(weights=golden_file, name="mine")
    model.class_names = tuple("abcdefghij")
    model.preprocessing = {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.5, np.float32(0.5)],
        "crop_ratio": 0.875,
        "interpolation": "bilinear",
    }
    path = tmp_path / "ours.safetensors"
    save_safetensors(model, path, metadata={"provenance": "a test"})
    loaded = make_tiny(weights=path)
    same_weights(loaded, model)
    assert loaded.class_names == model.class_names
    assert loaded.preprocessing == model.preprocessing
    other = make_tiny(weights=path, classes=7)
    assert other.class_names is None and other.preprocessing.crop_ratio == 0.875
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert (metadata["provenance"], metadata["format"]) == ("a test", "pt")
    assert (json.loads(metadata["model"]), json.loads(metadata["grid"])) == ("mine", [4, 4])


def test_float16_has_half_the_size(golden_model, tmp_path):
    half = tmp_path / "half.safetensors"
    save_safetensors(golden_model, half, dtype="float16")
    loaded, expected = make_tiny(weights=half), to_checkpoint(golden_model)
    assert half.stat().st_size < 0.6 * sum(value.nbytes for value in expected.values())
    assert {variable.dtype for variable in loaded.weights} == {"float32"}
    for name, found in to_checkpoint(loaded).items():
        kept = expected[name] if found.ndim < 2 else expected[name].astype("float16")
        np.testing.assert_array_equal(found, kept, err_msg=name)


ABOUT = {
    "library": "keras_vitx",
    **dict.fromkeys(("grid", "class_names", "preprocessing"), "null"),
    "model": '"a"',
}
DESCRIPTIONS = [
    ("`grid`", {"grid": "[0, 4]"}),
    ("`grid`", {"grid": '"four"'}),
    ("metadata can't be used", {"grid": "four"}),
    ("metadata can't be used", {"grid": "[" * 9999}),
    ("`class_names`", {"class_names": "5"}),
    ("`class_names`", {"class_names": '[["a"]]'}),
    ("names 1 classes but has weights for 10", {"class_names": '["a"]'}),
    ("`preprocessing`.*`mean`", {"preprocessing": '{"std": [0.5]}'}),
    ("`preprocessing`", {"preprocessing": "[0.5]"}),
    ("`model`", {"model": "null"}),
]


@pytest.mark.parametrize(("said", "change"), DESCRIPTIONS)
def test_a_wrong_description(unused, golden_tensors, tmp_path, said, change):
    save_file(golden_tensors, tmp_path / "m.safetensors", ABOUT | change)
    with pytest.raises(ValueError, match=rf"m\.safetensors.*({said})") as error:
        load_weights(unused, tmp_path / "m.safetensors")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_keras_files_are_not_built(golden_model, tmp_path):
    path = tmp_path / "m.keras"
    golden_model.save(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    config = json.loads(members["config.json"])
    # If it were built, an unknown layer would be an error.
    config["config"]["layers"][2]["class_name"] = "Unknown"
    # Repacked, as a user might.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {**members, "config.json": json.dumps(config)}.items():
            file.writestr(name, content)
    same_weights(make_tiny(weights=path), golden_model)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_in_other_models(golden_model, golden_tensors, tmp_path, suffix):
    path = save(golden_model, tmp_path / f"m{suffix}")
    same_weights(make_tiny(weights=path), golden_model)
    same_weights(make_tiny(weights=path, classes=7), golden_model, but="head")
    same_weights(make_tiny(weights=path, include_top=False), golden_model, but="head")
    for grid in ((8, 6), (2, 3)):
        model = make_tiny(weights=path, input_shape=(8 * grid[0], 8 * grid[1], 3))
        expected = resample(golden_tensors["pos_embed"], (4, 4), grid)
        np.testing.assert_array_equal(positions_of(model), expected)
    with pytest.raises(ValueError, match=r"18 missing from the file: blocks[._]3"):
        make_tiny(weights=path, depth=4)
    with pytest.raises(ValueError, match=r"18 not in the model: blocks[._]2"):
        make_tiny(weights=path, depth=2)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_keras_files_of_a_trained_model(tmp_path, suffix):
    # Such files also contain optimizer and seed generator states. 2 x 8 and 4 x 4 patches are the
    # same number of entries; here the models are equal.
    arguments = {"depth": 1, "input_shape": (16, 64, 3)}
    model = make_tiny(drop_path=0.1, **arguments)
    model.compile(keras.optimizers.AdamW(1e-3), "mse", metrics=["mae"])
    model.fit(numbers((2, 16, 64, 3)), numbers((2, 10)), verbose=0)
    same_weights(make_tiny(weights=save(model, tmp_path / f"m{suffix}"), **arguments), model)


def foreign_h5(path):
    with h5py.File(path, "w") as file:
        file["vars/kernel"] = np.zeros(3)


@pytest.mark.parametrize(
    ("suffix", "write", "words"),
    [
        *((suffix, lambda path: path.write_bytes(b""), "is empty") for suffix in FORMATS),
        *((suffix, lambda path: path.write_text("<p>no</p>" * 99), "not a") for suffix in FORMATS),
        (".weights.h5", foreign_h5, r"another architecture"),
    ],
)
def test_files_of_another_format(unused, tmp_path, suffix, write, words):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = tmp_path / f"m{suffix}"
    write(path)
    with pytest.raises(ValueError, match=rf"weights=.*{path.name}.*{words}") as caught:
        load_weights(unused, path)
    assert len(str(caught.value).splitlines()[0]) < 500
