import json

import numpy as np
import pytest
from safetensors import safe_open

from keras_vitx.weights import save_safetensors


def test_what_a_file_of_ours_restores(tiny, golden_file, same_weights, tmp_path):
    model = tiny(weights=golden_file, name="mine")
    model.class_names = tuple("abcdefghij")
    model.preprocessing = {
        "mean": (0.1, 0.2, 0.3),
        "std": (0.5, 0.5, np.float32(0.5)),
        "crop_ratio": 0.875,
        "interpolation": "bilinear",
    }
    path = tmp_path / "ours.safetensors"
    save_safetensors(model, path, metadata={"provenance": "a test"})

    loaded = tiny(weights=path)
    same_weights(loaded, model)
    assert tuple(loaded.class_names) == model.class_names
    assert dict(loaded.preprocessing) == dict(model.preprocessing)
    other = tiny(weights=path, classes=7)
    assert other.class_names is None
    assert other.preprocessing["crop_ratio"] == 0.875
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["provenance"] == "a test"
    assert metadata["format"] == "pt"
    assert json.loads(metadata["model"]) == "mine"
    assert json.loads(metadata["grid"]) == [4, 4]


def test_pytorch_reads_our_file(golden_model, golden_tensors, tmp_path):
    from safetensors.torch import load_file

    save_safetensors(golden_model, tmp_path / "ours.safetensors")
    tensors = load_file(tmp_path / "ours.safetensors")
    assert tensors.keys() == golden_tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), golden_tensors[name], err_msg=name)


def test_half_the_size(tiny, golden_model, weights_of, tmp_path):
    model = golden_model
    save_safetensors(model, tmp_path / "half.safetensors", dtype="float16")
    save_safetensors(model, tmp_path / "whole.safetensors")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    found = weights_of(tiny(weights=tmp_path / "half.safetensors"))
    for name, array in weights_of(model).items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array.astype("float16"), err_msg=name)


def test_wrong_arguments_leave_no_file(tiny, tmp_path):
    model = tiny()
    path = tmp_path / "ours.safetensors"
    with pytest.raises(ValueError, match="path"):
        save_safetensors(model, tmp_path / "ours.bin")
    with pytest.raises(ValueError, match="int8"):
        save_safetensors(model, path, dtype="int8")
    with pytest.raises(ValueError, match=r"metadata.*3"):
        save_safetensors(model, path, metadata={"epoch": 3})
    with pytest.raises(ValueError, match="grid"):
        save_safetensors(model, path, metadata={"grid": "[2, 2]"})
    model.get_layer("norm").gamma.assign(np.full(24, 1e6, "float32"))
    with pytest.raises(ValueError, match=r"norm\.weight"):
        save_safetensors(model, path, dtype="float16")
    assert not list(tmp_path.iterdir())


def test_odd_metadata_is_told(tiny, golden_tensors, tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "odd.safetensors"
    save_file(golden_tensors, path, metadata={"library": "keras_vitx", "grid": "four"})
    with pytest.raises(ValueError, match=r"odd\.safetensors.*metadata"):
        tiny(weights=path)
