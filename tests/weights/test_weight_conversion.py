"""Loading a file's arrays into a model: the golden case, allowed differences and errors."""

import re

import keras
import numpy as np
import pytest
from harness import FAMILIES, GOLDEN, array, close
from safetensors.numpy import load_file, save_file
from tiny import SAVERS, weights_of

import keras_vitx as kv
from keras_vitx.weights import (
    find,
    load,
    load_weights,
    resample,
    save_torch,
    to_checkpoint,
)
from keras_vitx.weights.load import LocalFile
from keras_vitx.weights.names import TABLES, Identity, identify


@pytest.fixture
def file_of(tmp_path):
    """Write tensors, or a model's weights under the public names, and nothing about the model."""

    def write(tensors, **more):
        if not isinstance(tensors, dict):
            tensors = to_checkpoint(tensors)
        path = tmp_path / "plain.safetensors"
        save_file(tensors | more, path)
        return path

    return write


def test_the_golden_file_and_back(tiny, golden_model, golden_file, golden_tensors, same_weights):
    case = np.load(GOLDEN / "cait.npz")
    close(golden_model.predict(case["input"], verbose=0), case["logits"], 1e-5)
    tensors = to_checkpoint(golden_model)
    assert tensors.keys() == golden_tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, golden_tensors[name], err_msg=name)
    model = tiny()
    load_weights(model, str(golden_file))
    same_weights(model, golden_model)


def test_other_heads(
    tiny, golden_file, golden_model, golden_tensors, file_of, same_weights, caplog
):
    model = tiny(classes=7, weights=golden_file)
    (record,) = caplog.records
    assert "head" in record.getMessage() and "10 classes" in record.getMessage()
    assert tuple(model.get_layer("head").kernel.shape) == (24, 7)
    caplog.clear()
    tiny(include_top=False, weights=golden_file)
    assert not caplog.records
    with pytest.raises(ValueError, match=r"head\.bias is \(7,\)"):
        tiny(weights=file_of(golden_tensors | {"head.bias": np.zeros(7, "float32")}))
    for name in ("head.weight", "head.bias"):
        del golden_tensors[name]
    with pytest.raises(ValueError, match="include_top=False"):
        tiny(weights=file_of(golden_tensors))
    tiny(weights=file_of(golden_tensors), include_top=False)


def test_rectangular_positions(tiny, file_of, same_weights, tmp_path, caplog):
    # Without a word about the grid: 6 x 8 entries are not a square, so they must be on the
    # model's own grid.
    model = tiny(input_shape=(48, 64, 3))
    path = file_of(model)
    same_weights(model, tiny(input_shape=(48, 64, 3), weights=path))
    with pytest.raises(ValueError, match="pos_embed"):
        tiny(input_shape=(64, 64, 3), weights=path)
    # 2 x 8 and 4 x 4 are the same number of entries: the model's grid, and the log says so.
    model = tiny(input_shape=(16, 64, 3))
    assert not caplog.records
    same_weights(model, tiny(input_shape=(16, 64, 3), weights=file_of(model)))
    (record,) = caplog.records
    assert "16 positions are 2 x 8 or 4 x 4" in record.getMessage()
    # Published checkpoints are of square images.
    square = tiny(input_shape=(16, 64, 3))
    load(square, LocalFile("x", file_of(model), find("cait_mini_cifar10", None)))
    old = weights_of(model)["pos_embed/embeddings"]
    resampled = resample(old, (4, 4), (2, 8))
    np.testing.assert_array_equal(weights_of(square)["pos_embed/embeddings"], resampled)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".weights.h5", ".keras"])
def test_files_hold_their_grid(tiny, tmp_path, caplog, suffix):
    model, path = tiny(input_shape=(16, 64, 3)), tmp_path / f"m{suffix}"
    SAVERS[suffix](model, path)
    old = weights_of(model)["pos_embed/embeddings"]
    for grid in ((4, 4), (2, 8), (8, 6)):
        other = tiny(input_shape=(8 * grid[0], 8 * grid[1], 3))
        load_weights(other, path)
        found = [weights_of(other)["pos_embed/embeddings"]]
        if suffix == ".weights.h5":
            plain = tiny(input_shape=(8 * grid[0], 8 * grid[1], 3))
            plain.load_weights(path)
            found.append(weights_of(plain)["pos_embed/embeddings"])
        for each in found:
            np.testing.assert_array_equal(each, resample(old, (2, 8), grid))
    assert not caplog.records


def test_positions_without_a_name_are_resampled(tmp_path):
    def make(sides):
        layers = [
            kv.layers.PatchEmbedding(8, 8),
            kv.layers.PositionEmbedding((sides[0] // 8, sides[1] // 8)),
        ]
        return kv.models.Chain(layers, (*sides, 3))

    make((8, 8))
    model = make((16, 64))
    model.save_weights(tmp_path / "m.weights.h5")
    other = make((32, 32))
    load_weights(other, tmp_path / "m.weights.h5")
    found, old = (array(each.weights[-1].value) for each in (other, model))
    np.testing.assert_array_equal(found, resample(old, (2, 8), (4, 4)))


@pytest.mark.parametrize("suffix", [*SAVERS, ".ckpt", "directory"])
def test_the_file_determines_the_classes(tiny, tmp_path, caplog, same_weights, suffix):
    size = kv.models.variant(
        "Tiny_1000", kv.CaiT, (32, 32, 3), dim=24, depth=3, num_heads=4, patch_size=8
    )
    model, path = tiny(classes=7), tmp_path / f"m{suffix}"
    if suffix in (".pth", ".ckpt"):
        pytest.importorskip("torch")
    if suffix == ".ckpt":
        save_torch(model, tmp_path / "m.pth")
        (tmp_path / "m.pth").rename(path)
    else:
        (kv.save if suffix == "directory" else SAVERS[suffix])(model, path)
    images = keras.Input((32, 32, 3))
    try:
        for more in ({}, {"input_tensor": images}, {"pooling": "avg"}):
            loaded = size(weights=path, **more)
            assert loaded.output_shape == (None, 7) and not caplog.records
            same_weights(loaded, model)
        assert size(weights=path, classes=5).output_shape == (None, 5)
        assert "head has 7 classes" in caplog.text
        assert size(weights=path, include_top=False).output_shape[-1] == 24
    finally:
        del kv.models.build.MODELS["Tiny_1000"]


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("old", "new", "prefix"),
    [
        ((14, 14), (24, 24), 0),
        ((24, 24), (14, 14), 0),
        ((16, 12), (7, 30), 0),
        ((7, 28), (14, 14), 0),
        ((14, 14), (5, 9), 2),
        ((2, 2), (1, 5), 1),
        ((3, 4), (3, 4), 0),
    ],
)
def test_positions_are_resampled_as_in_timm(old, new, prefix, timm):
    import torch

    entries = np.random.default_rng(0).normal(size=(1, prefix + old[0] * old[1], 5))
    entries = entries.astype("float32")
    expected = timm.layers.resample_abs_pos_embed(
        torch.tensor(entries), list(new), list(old), num_prefix_tokens=prefix
    ).numpy()
    found = resample(entries, old, new, prefix)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0 if old == new else 1e-5)
    np.testing.assert_array_equal(found[:, :prefix], entries[:, :prefix])
    # DeiT's code resamples without antialiasing, for which PyTorch has another kernel.
    patches = torch.tensor(entries[:, prefix:]).reshape(1, *old, -1).permute(0, 3, 1, 2)
    plain = torch.nn.functional.interpolate(patches, new, mode="bicubic", align_corners=False)
    found = resample(entries, old, new, prefix, antialias=False)[:, prefix:]
    np.testing.assert_allclose(found, plain.flatten(2).mT.numpy(), atol=1e-5)


def test_all_that_does_not_fit_is_listed(tiny, golden_tensors, file_of, same_weights):
    missing = ["norm.bias", "blocks.1.gamma_1", "cls_token"]
    for name in missing:
        del golden_tensors[name]
    golden_tensors["rope.table"] = np.zeros((2, 2), "float32")
    for index in (9, 10, 11):
        golden_tensors[f"blocks.{index}.gamma_1"] = np.zeros(24, "float32")
    golden_tensors["norm.weight"] = np.zeros(23, "float32")
    golden_tensors["blocks.0.mlp.fc1.weight"] = np.zeros((24, 96), "float32")
    golden_tensors["blocks.0.norm1.bias"] = np.zeros(24, "int32")
    model = tiny()
    before = weights_of(model)
    with pytest.raises(ValueError, match=r"plain\.safetensors.*doesn't fit") as caught:
        load_weights(model, file_of(golden_tensors))
    first, *lines = str(caught.value).splitlines()
    assert "another" not in first
    assert lines[0].startswith("- 3 missing") and all(name in lines[0] for name in missing)
    assert lines[1] == "- 4 not in the model: blocks.{9-11}.gamma_1, rope.table"
    assert lines[2].startswith("- 3 of another shape")
    assert "norm.weight is (23,) in the file, (24,) in the model" in lines[2]
    assert "blocks.0.mlp.fc1.weight is (24, 96) in the file, (96, 24) in the model" in lines[2]
    assert "blocks.0.norm1.bias is I32" in lines[2]
    assert all(np.array_equal(array, before[name]) for name, array in weights_of(model).items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 12, "num_heads": 2}, "looks like a CaiT of 3 blocks, 24 wide"),
        ({"patch_size": 4}, r"patches have 8 x 8 pixels, the model's 4 x 4 \(patch_size\)"),
        ({"class_depth": 0, "class_token_at": 0, "layer_scale": None}, "not in the model"),
    ],
)
def test_other_models_are_told(tiny, golden_file, changes, words):
    with pytest.raises(ValueError, match=words):
        tiny(weights=golden_file, **changes)


@pytest.mark.backend_free
def test_what_a_file_looks_like_is_told(tiny, file_of):
    tensors = {f"layer{i}.conv.weight": np.zeros((3, 3), "float32") for i in range(40)}
    with pytest.raises(ValueError, match=r"another architecture.*\n.*\n.*layer39\.conv\.weight"):
        tiny(weights=file_of(tensors))
    path = file_of(kv.ViT_Ti())
    for size in (kv.ViT_S, kv.CaiT_XXS24):
        with pytest.raises(ValueError, match=rf"model '{size.__name__}'\. It looks like ViT_Ti\."):
            size(weights=path)


@pytest.mark.backend_free
@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_told_apart(family):
    model = FAMILIES[family]()
    # Families without a mark, such as CBViT, have the variables of a ViT.
    looks = family if getattr(TABLES.get(family), "mark", None) else "ViT"
    depth = sum(bool(re.search(r"blocks_\d+$", step.name)) for step in model.layers)
    (dim,) = model.get_layer("norm").gamma.shape
    in_keras = {variable.path: tuple(variable.shape) for variable in model.weights}
    in_torch = {name: array.shape for name, array in to_checkpoint(model).items()}
    assert identify(in_keras) == identify(in_torch) == Identity(looks, depth, dim)


@pytest.mark.parametrize("suffix", SAVERS)
def test_other_channels_are_told(tiny, tmp_path, suffix):
    if suffix == ".pth":
        pytest.importorskip("torch")
    SAVERS[suffix](tiny(input_shape=(32, 32, 1)), tmp_path / f"m{suffix}")
    with pytest.raises(ValueError, match=r"images have 1 channels, the model's 3 \(input_shape\)"):
        tiny(weights=tmp_path / f"m{suffix}")


@pytest.mark.parametrize(
    ("family", "argument"),
    [("ViT", "distillation_token"), ("RefinedViT", "dense_head"), ("DeepViT", "normalize_maps")],
)
@pytest.mark.parametrize("value", [True, False])
def test_the_argument_that_is_missing_is_said(file_of, family, argument, value):
    path = file_of(FAMILIES[family](**{argument: value}))
    with pytest.raises(ValueError, match=f"Build the model with {argument}={value}"):
        FAMILIES[family](weights=path, **{argument: not value})


def test_buffers_that_no_model_needs_are_left(file_of):
    buffers = {
        "blocks.0.attn.reatten_norm.num_batches_tracked": np.array(3),
        "blocks.0.attn.rel_indices": np.zeros((1, 4, 4, 3), "float32"),
    }
    make = FAMILIES["DeepViT"]
    model = make()
    loaded = make(weights=file_of(model, **buffers))
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(array(one.value), array(other.value))
    with pytest.raises(ValueError, match="rel_table"):
        make(weights=file_of(model, rel_table=np.zeros(3, "float32")))


def test_deepvit_without_normalization_of_maps(file_of, tmp_path):
    size = {
        **{"dim": 24, "depth": 3, "num_heads": 4, "patch_size": 8, "input_shape": (32, 32, 3)},
        **{"classes": 10, "classifier_activation": None},
    }
    state = load_file(GOLDEN / "deepvit_pure.safetensors")
    # The same network with normalizations that change nothing.
    values = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1 - 1e-5}
    identity = {
        name: np.full_like(tensor, values.get(name.rpartition(".")[2], 0))
        for name, tensor in state.items()
        if "var_norm" in name
    }
    images = np.load(GOLDEN / "deepvit_pure.npz")["input"]
    expected = array(kv.DeepViT(**size, weights=file_of(state | identity))(images))
    stripped = {name: state[name] for name in state.keys() - identity.keys()}
    model = kv.DeepViT(**size, normalize_maps=False, weights=file_of(stripped))
    for training in (False, True):
        close(array(model(images, training=training)), expected)
    shared = kv.DeepViT(**size, normalize_maps=False, shared_depth=1)
    assert not any("var_norm" in variable.path for variable in (*model.weights, *shared.weights))
    model.save(tmp_path / "m.keras")
    close(array(kv.load(tmp_path / "m.keras")(images)), expected)
