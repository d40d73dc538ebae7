"""Loading a file's arrays into a model: the golden case, allowed differences and errors."""

import logging

import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vitx.weights import load_weights, resample, save_safetensors, to_checkpoint
from keras_vitx.weights.convert import abbreviated


def relative_error(found, expected):
    return np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()


def test_golden_logits(golden_model, golden_case):
    logits = golden_model.predict(golden_case["input"], verbose=0)
    assert relative_error(logits, golden_case["logits"]) < 1e-5


def test_to_checkpoint_is_the_file(golden_model, golden_tensors):
    tensors = to_checkpoint(golden_model)
    assert tensors.keys() == golden_tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, golden_tensors[name], err_msg=name)


def test_weights_in_a_model_that_stands(tiny, golden_file, golden_model, same_weights):
    model = tiny()
    load_weights(model, str(golden_file))
    same_weights(model, golden_model)


def test_other_number_of_classes(tiny, golden_file, golden_model, same_weights, caplog):
    with caplog.at_level(logging.INFO, logger="keras_vitx"):
        model = tiny(classes=7, weights=golden_file)
    (record,) = caplog.records
    assert "head" in record.getMessage() and "10 classes" in record.getMessage()
    same_weights(model, golden_model, but=["head"])
    assert tuple(model.get_layer("head").kernel.shape) == (24, 7)


def test_without_head(tiny, golden_file, golden_model, same_weights, caplog):
    with caplog.at_level(logging.INFO, logger="keras_vitx"):
        model = tiny(include_top=False, weights=golden_file)
    assert not caplog.records
    same_weights(model, golden_model, but=["head"])


@pytest.mark.parametrize("shape", [(64, 48, 3), (16, 24, 3)])
def test_positions_follow_the_grid(tiny, golden_file, golden_tensors, weights_of, shape):
    model = tiny(input_shape=shape, weights=golden_file)
    expected = resample(golden_tensors["pos_embed"], (4, 4), (shape[0] // 8, shape[1] // 8))
    np.testing.assert_array_equal(weights_of(model)["pos_embed/embeddings"], expected)


def test_rectangular_positions_without_a_word_about_the_grid(tiny, tmp_path, same_weights):
    # 6 x 8 entries are not a square, so they must be on the model's own grid.
    model = tiny(input_shape=(48, 64, 3))
    save_file(to_checkpoint(model), tmp_path / "plain.safetensors")
    same_weights(model, tiny(input_shape=(48, 64, 3), weights=tmp_path / "plain.safetensors"))
    with pytest.raises(ValueError, match="pos_embed"):
        tiny(input_shape=(64, 64, 3), weights=tmp_path / "plain.safetensors")


def test_rectangular_positions_with_a_word_about_the_grid(tiny, tmp_path, weights_of):
    # 2 x 8 and 4 x 4 are the same number of entries.
    model = tiny(input_shape=(16, 64, 3))
    save_safetensors(model, tmp_path / "ours.safetensors")
    loaded = tiny(weights=tmp_path / "ours.safetensors")
    np.testing.assert_array_equal(
        weights_of(loaded)["pos_embed/embeddings"],
        resample(weights_of(model)["pos_embed/embeddings"], (2, 8), (4, 4)),
    )


def test_all_that_does_not_fit_is_listed(tiny, golden_tensors, tmp_path, weights_of):
    missing = ["norm.bias", "blocks.1.gamma_1", "cls_token"]
    for name in missing:
        del golden_tensors[name]
    golden_tensors["rope.table"] = np.zeros((2, 2), "float32")
    golden_tensors["blocks.9.gamma_1"] = np.zeros(24, "float32")
    golden_tensors["norm.weight"] = np.zeros(23, "float32")
    golden_tensors["blocks.0.mlp.fc1.weight"] = np.zeros((24, 96), "float32")
    golden_tensors["blocks.0.norm1.bias"] = np.zeros(24, "int32")
    save_file(golden_tensors, tmp_path / "odd.safetensors")
    model = tiny()
    before = weights_of(model)
    with pytest.raises(ValueError, match=r"odd\.safetensors.*doesn't fit") as caught:
        load_weights(model, tmp_path / "odd.safetensors")
    first, *lines = str(caught.value).splitlines()
    assert "another" not in first
    assert lines[0].startswith("- 3 missing") and all(name in lines[0] for name in missing)
    assert lines[1] == "- 2 not in the model: blocks.9.gamma_1, rope.table"
    assert lines[2].startswith("- 3 of another shape")
    assert "norm.weight is (23,) in the file, (24,) in the model" in lines[2]
    assert "blocks.0.mlp.fc1.weight is (24, 96) in the file, (96, 24) in the model" in lines[2]
    assert "blocks.0.norm1.bias is I32" in lines[2]
    after = weights_of(model)
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 4}, "18 missing"),
        ({"depth": 1}, "36 not in the model"),
        ({"dim": 12, "num_heads": 2}, "looks like a CaiT of 3 blocks, 24 wide"),
        ({"patch_size": 4}, "other patches or channels"),
        ({"class_depth": 0, "class_token_at": 0, "layer_scale": None}, "not in the model"),
    ],
)
def test_other_models_are_told(tiny, golden_file, changes, words):
    with pytest.raises(ValueError, match=words):
        tiny(weights=golden_file, **changes)


def test_another_architecture_is_told(tiny, tmp_path):
    tensors = {f"layer{i}.conv.weight": np.zeros((3, 3), "float32") for i in range(40)}
    save_file(tensors, tmp_path / "convnet.safetensors")
    with pytest.raises(ValueError, match="another architecture") as caught:
        tiny(weights=tmp_path / "convnet.safetensors")
    assert all(f"layer{i}.conv.weight" in str(caught.value) for i in range(40))


def test_a_file_without_classifier_says_how_to_use_it(tiny, golden_tensors, tmp_path):
    for name in ("head.weight", "head.bias"):
        del golden_tensors[name]
    save_file(golden_tensors, tmp_path / "trunk.safetensors")
    with pytest.raises(ValueError, match="include_top=False"):
        tiny(weights=tmp_path / "trunk.safetensors")
    tiny(weights=tmp_path / "trunk.safetensors", include_top=False)


def test_a_lone_classifier_bias_of_other_length_is_an_error(tiny, golden_tensors, tmp_path):
    golden_tensors["head.bias"] = np.zeros(7, "float32")
    save_file(golden_tensors, tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match=r"head\.bias is \(7,\)"):
        tiny(weights=tmp_path / "odd.safetensors")


def test_abbreviated():
    names = [f"blocks.{i}.norm1.bias" for i in (0, 1, 2, 5)] + ["a.3.b", "a.4.b", "norm.weight"]
    assert abbreviated(names) == ["blocks.{0,1,2,5}.norm1.bias", "a.3.b", "a.4.b", "norm.weight"]
    assert abbreviated(f"blocks_{i}/ls1/gamma" for i in range(3)) == ["blocks_{0-2}/ls1/gamma"]
