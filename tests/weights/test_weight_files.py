"""Files of every format, valid and invalid."""

import argparse
import json
import os
import sys
import zipfile

import keras
import numpy as np
import pytest
from harness import FORMATS, numbers, same_weights, save
from safetensors import safe_open
from tiny import make_tiny

from keras_vitx.weights import load_weights, save_safetensors, to_checkpoint

pytestmark = pytest.mark.backend_free


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def state(torch, golden_tensors):
    return {name: torch.tensor(array) for name, array in golden_tensors.items()}


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


TORCH_FILES = {
    "plain": lambda torch, s: s,
    "model": lambda torch, s: {"model": prefixed(s, "module.")},
    "state_dict": lambda torch, s: {"state_dict": s, "epoch": 3, "arch": "cait"},
    "state_dict_ema": lambda torch, s: {
        "state_dict": prefixed(s, "wrong."),
        "state_dict_ema": prefixed(s, "model."),
    },
    "ema": lambda torch, s: {"model": {n: 2 * v for n, v in s.items()}, "ema": {"module": s}},
    "target_encoder": lambda torch, s: {
        "encoder": prefixed({n: 2 * v for n, v in s.items()}, "module."),
        "target_encoder": prefixed(s, "module."),
    },
    "nested": lambda torch, s: {
        "model": {"state_dict": prefixed(s, "_orig_mod.module.")},
        "model_ema": None,
    },
    "timm": lambda torch, s: {"args": argparse.Namespace(lr=1e-3), "state_dict": s},
    "averaged": lambda torch, s: {"n_averaged": torch.tensor(3), **prefixed(s, "module.")},
    "lightning": lambda torch, s: {
        "state_dict": {**prefixed(s, "backbone."), "criterion.weight": torch.ones(10)},
        "callbacks": {"best": {"best_model_score": torch.tensor(0.8)}},
    },
    "parameters": lambda torch, s: {n: torch.nn.Parameter(value) for n, value in s.items()},
}


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        *((content, ".pth") for content in TORCH_FILES),
        ("plain", ".old.pth"),
        *(("plain", suffix) for suffix in (".pt", ".bin", ".pth.tar", ".ckpt")),
    ],
)
def test_torch_files(torch, state, golden_model, tmp_path, content, suffix):
    path, tensors = tmp_path / f"file{suffix}", TORCH_FILES[content](torch, state)
    torch.save(tensors, path, _use_new_zipfile_serialization=suffix != ".old.pth")
    same_weights(make_tiny(weights=path), golden_model)


def test_a_torch_file_in_bfloat16(torch, state, tmp_path):
    rounded = {name: value.to(torch.bfloat16) for name, value in state.items()}
    torch.save(rounded, tmp_path / "file.pth")
    for name, found in to_checkpoint(make_tiny(weights=tmp_path / "file.pth")).items():
        np.testing.assert_array_equal(found, rounded[name].float().numpy(), err_msg=name)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_that_a_file_holds_twice(torch, unused, state, tmp_path, suffix):
    from safetensors.torch import save_file

    copies = ("teacher.", "student.")
    content = {one + name: v.clone() for one in copies for name, v in state.items()}
    (torch.save if suffix == ".pth" else save_file)(content, tmp_path / f"m{suffix}")
    with pytest.raises(ValueError, match=r"more than once: (student|teacher)\.\*"):
        load_weights(unused, tmp_path / f"m{suffix}")


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_nothing_in_a_file_is_executed(torch, state, unused, tmp_path):
    for content in (Runs(tmp_path / "ran"), {"model": state, "extra": Runs(tmp_path / "ran")}):
        torch.save(content, tmp_path / "file.pth")
        with pytest.raises(ValueError, match=r"file\.pth can't be read"):
            load_weights(unused, tmp_path / "file.pth")
    assert not (tmp_path / "ran").exists()


def test_without_torch_the_extra_is_named(unused, tmp_path, monkeypatch):
    (tmp_path / "file.pth").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match='extra "torch"'):
        load_weights(unused, tmp_path / "file.pth")


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_damaged_file_is_one_error(unused, tmp_path, suffix):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = save(unused, tmp_path / f"m{suffix}")
    content = path.read_bytes()
    damaged = [b"", b"<p>no</p>" * 99, *(content[: len(content) * i // 8] for i in (1, 4, 7))]
    damaged += [content[:at] + b"\xff" * 8 + content[at + 8 :] for at in (0, 8, len(content) - 16)]
    for each in damaged:
        path.write_bytes(each)
        try:
            load_weights(unused, path)
        except ValueError as error:
            assert path.name in str(error)


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
    model.save(tmp_path / "m.keras")
    for each in (model, keras.saving.load_model(tmp_path / "m.keras")):
        save_safetensors(each, path, metadata={"provenance": "a test"})
        with safe_open(path, "numpy") as file:
            metadata = file.metadata()
        assert (metadata["provenance"], metadata["format"]) == ("a test", "pt")
        size, arguments, grid = (json.loads(metadata[k]) for k in ("size", "arguments", "grid"))
        assert (size, arguments["dim"], arguments["classes"]) == ("CaiT", 24, 10)
        assert (arguments["input_shape"], grid) == ([32, 32, 3], [4, 4])
    loaded = make_tiny(weights=path)
    same_weights(loaded, model)
    assert loaded.class_names == model.class_names
    assert loaded.preprocessing == model.preprocessing
    other = make_tiny(weights=path, classes=7)
    assert other.class_names is None and other.preprocessing.crop_ratio == 0.875


def test_float16_has_half_the_size(golden_model, tmp_path):
    half = tmp_path / "half.safetensors"
    save_safetensors(golden_model, half, dtype="float16")
    loaded, expected = make_tiny(weights=half), to_checkpoint(golden_model)
    assert half.stat().st_size < 0.6 * sum(value.nbytes for value in expected.values())
    assert {variable.dtype for variable in loaded.weights} == {"float32"}
    for name, found in to_checkpoint(loaded).items():
        kept = expected[name] if found.ndim < 2 else expected[name].astype("float16")
        np.testing.assert_array_equal(found, kept, err_msg=name)


# safetensors/safetensors#782, huggingface/sentence-transformers#4010
@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_files_have_the_permissions_that_the_umask_leaves(unused, tmp_path):
    before = os.umask(0o002)
    try:
        save_safetensors(unused, tmp_path / "m.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "m.safetensors").stat().st_mode & 0o777 == 0o664


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
def test_every_format_in_other_models(golden_model, tmp_path, suffix):
    path = save(golden_model, tmp_path / f"m{suffix}")
    same_weights(make_tiny(weights=path), golden_model)
    same_weights(make_tiny(weights=path, classes=7), golden_model, but="head")
    same_weights(make_tiny(weights=path, include_top=False), golden_model, but="head")
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


def test_quantized_weights_are_refused(tmp_path):
    model = make_tiny()
    model.get_layer("head").quantize("int8")
    model.save(tmp_path / "int8.keras")
    with pytest.raises(ValueError, match="missing from the file: head"):
        make_tiny(weights=tmp_path / "int8.keras")
