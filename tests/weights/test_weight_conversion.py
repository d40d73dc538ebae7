"""Loading a file's arrays into a model: the golden case, allowed differences and errors."""

from functools import partial

import keras
import numpy as np
import pytest
from harness import FAMILIES, FORMATS, GOLDEN, GOLDEN_CASES, array, close, same_weights, save
from safetensors.numpy import load_file
from tiny import make_tiny, positions_of

import keras_vitx as kv
from keras_vitx.weights import load, load_weights, resample, to_checkpoint
from keras_vitx.weights.reading import open_weights

pytestmark = pytest.mark.backend_free


def of_grid(rows, columns, **more):
    return make_tiny(input_shape=(8 * rows, 8 * columns, 3), **more)


def test_positions_of_rectangles(file_of, caplog):
    # Without a word about the grid: 6 x 8 entries are not a square, so they must be on the
    # model's own grid.
    model = of_grid(6, 8)
    path = file_of(model)
    same_weights(of_grid(6, 8, weights=path), model)
    with pytest.raises(ValueError, match="pos_embed"):
        of_grid(8, 8, weights=path)
    # 2 x 8 and 4 x 4 are the same number of entries: the model's grid, and the log says so.
    model = of_grid(2, 8)
    path = file_of(model)
    assert not caplog.records
    same_weights(of_grid(2, 8, weights=path), model)
    (record,) = caplog.records
    assert "16 positions are 2 x 8 or 4 x 4" in record.getMessage()
    # Published checkpoints are of square images.
    other = of_grid(2, 8)
    with open_weights(path) as file:
        load(other, file._replace(square=True), "x")
    expected = resample(positions_of(model), (4, 4), (2, 8))
    np.testing.assert_array_equal(positions_of(other), expected)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".weights.h5", ".keras"])
def test_files_hold_their_grid(tmp_path, caplog, suffix):
    model = of_grid(2, 8)
    path = save(model, tmp_path / f"m{suffix}")
    for grid in ((4, 4), (2, 8), (8, 6)):
        loaded = [of_grid(*grid, weights=path)]
        if suffix == ".weights.h5":
            loaded.append(of_grid(*grid))
            loaded[1].load_weights(path)
        for other in loaded:
            expected = resample(positions_of(model), (2, 8), grid)
            np.testing.assert_array_equal(positions_of(other), expected)
    assert not caplog.records


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_file_determines_the_classes(tmp_path, monkeypatch, caplog, suffix):
    monkeypatch.setattr(kv.models.build, "MODELS", {**kv.models.build.MODELS})
    size = {"dim": 24, "depth": 3, "num_heads": 4, "patch_size": 8}
    size = kv.models.variant("Tiny_1000", kv.CaiT, (32, 32, 3), **size)
    model, images = make_tiny(classes=7), keras.Input((32, 32, 3))
    path = save(model, tmp_path / f"m{suffix}")
    loaded = size(weights=path, input_tensor=images, pooling="avg")
    assert loaded.output_shape == (None, 7) and not caplog.records
    same_weights(loaded, model)
    assert size(weights=path, classes=5).output_shape == (None, 5)
    assert "head has 7 classes" in caplog.text
    assert size(weights=path, include_top=False).output_shape[-1] == 24


def test_all_that_does_not_fit_is_listed(golden_tensors, file_of):
    del golden_tensors["norm.bias"], golden_tensors["cls_token"]
    zeros = partial(np.zeros, dtype="float32")
    golden_tensors |= {f"blocks.{index}.gamma_1": zeros(24) for index in (9, 10, 11)}
    golden_tensors |= {"rope.table": zeros((2, 2)), "norm.weight": zeros(23)}
    golden_tensors |= {"blocks.0.norm1.bias": np.zeros(24, "int32")}
    model = make_tiny()
    before = to_checkpoint(model)
    with pytest.raises(ValueError, match=r"plain\.safetensors.*doesn't fit") as caught:
        load_weights(model, file_of(golden_tensors))
    _, *lines = str(caught.value).splitlines()
    assert lines == [
        "- 2 missing from the file: cls_token, norm.bias",
        "- 4 not in the model: blocks.10.gamma_1, blocks.11.gamma_1, blocks.9.gamma_1, rope.table",
        "- 2 of another shape or kind: blocks.0.norm1.bias is I32 and not floating-point numbers, "
        "norm.weight is (23,) in the file, (24,) in the model",
    ]
    assert all((found == before[name]).all() for name, found in to_checkpoint(model).items())


def test_a_file_of_ours_says_what_it_was_saved_from(tmp_path):
    path = save(make_tiny(), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="saved from a CaiT, doesn't fit the model 'ViT_Ti'"):
        kv.ViT_Ti(weights=path, input_shape=(32, 32, 3))


def test_a_file_of_another_size_names_its_own(file_of):
    path = file_of(kv.ViT_Ti(input_shape=(32, 32, 3)))
    with pytest.raises(ValueError, match=r"151 of another shape.*\n.*are those of ViT_Ti"):
        kv.ViT_S(weights=path, input_shape=(32, 32, 3))


def test_buffers_that_no_model_needs_are_left(file_of):
    buffers = {
        "blocks.0.attn.reatten_norm.num_batches_tracked": np.array(3),
        "blocks.0.attn.rel_indices": np.zeros((1, 4, 4, 3), "float32"),
    }
    make = FAMILIES["DeepViT"]
    model = make()
    same_weights(make(weights=file_of(model, **buffers)), model)
    with pytest.raises(ValueError, match="rel_table"):
        make(weights=file_of(model, rel_table=np.zeros(3, "float32")))


def test_deepvit_without_normalization_of_maps(file_of):
    make = GOLDEN_CASES["deepvit_pure"]
    state = load_file(GOLDEN / "deepvit_pure.safetensors")
    # The same network with normalizations that change nothing.
    values = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1 - 1e-5}
    identity = {
        name: np.full_like(tensor, values.get(name.rpartition(".")[2], 0))
        for name, tensor in state.items()
        if "var_norm" in name
    }
    images = np.load(GOLDEN / "deepvit_pure.npz")["input"]
    expected = array(make(weights=file_of(state | identity))(images))
    stripped = {name: state[name] for name in state.keys() - identity.keys()}
    model = make(normalize_maps=False, weights=file_of(stripped))
    for training in (False, True):
        close(array(model(images, training=training)), expected)
    shared = make(normalize_maps=False, shared_depth=1, weights=None)
    assert not any("var_norm" in variable.path for variable in (*model.weights, *shared.weights))
