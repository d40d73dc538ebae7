"""The catalog: which checkpoint a name selects, and what the entries say."""

import inspect
import json

import pytest
from PIL import Image
from safetensors import safe_open

import keras_vitx as kv
from keras_vitx.weights import catalog, checkpoints_of, find, find_source
from keras_vitx.weights.load import path_of

pytestmark = pytest.mark.backend_free


SHIPPED = [c.constructor for c in catalog.CHECKPOINTS if c.source.startswith("package:")]


@pytest.mark.parametrize("size", SHIPPED)
def test_shipped_checkpoints(size):
    (checkpoint,) = checkpoints_of(size)
    assert checkpoint is find("cifar10", size)
    assert len(checkpoint.class_names) == checkpoint.classes == 10
    model = getattr(kv, size)(weights="cifar10")
    assert tuple(model.class_names) == checkpoint.class_names
    assert model.preprocessing == checkpoint.preprocessing
    path = path_of(find_source("cifar10", size))
    assert path.stat().st_size < 1.5e6
    with safe_open(path, "numpy") as file:
        provenance = json.loads(file.metadata()["provenance"])
    assert {"recipe", "changes", "dataset", "epochs", "seed", "added_in_commit"} <= set(provenance)
    assert round(100 * provenance["top1"], 2) == checkpoint.top1


TOKEN = {"distillation_token": True}


@pytest.mark.parametrize(
    ("constructor", "image_size", "expected"),
    [
        ("CaiT_XXS24", None, "cait_xxs24_224.fb_dist_in1k"),
        ("CaiT_XXS24", (384, 384), "cait_xxs24_384.fb_dist_in1k"),
        ("CaiT_XXS24", (512, 256), "cait_xxs24_384.fb_dist_in1k"),
        ("ViT_B", 384, "deit_base_patch16_384.fb_in1k"),
        ("ViT_S", 384, "vit_small_patch16_384.augreg_in21k_ft_in1k"),
        ("ViT_Ti", "two tokens", "deit_tiny_distilled_patch16_224.fb_in1k"),
        ("CBViT_S", None, "deit_small_patch16_224.fb_in1k"),
        ("PiT_B", "two tokens", "pit_b_distilled_224.in1k"),
        ("ConViT_S", (448, 448), "convit_small.fb_in1k"),
    ],
)
def test_imagenet_of_a_size(constructor, image_size, expected):
    arguments = TOKEN if image_size == "two tokens" else {"image_size": image_size}
    assert find("imagenet", constructor, **arguments).name == expected


def test_a_directory_does_not_hide_a_name(tmp_path, monkeypatch):
    (tmp_path / "imagenet").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="needs the constructor"):
        find_source("imagenet")


def test_all_public_checkpoints_are_there():
    on_the_hub = [c for c in catalog.CHECKPOINTS if c.source.startswith("hf://timm/")]
    assert len(on_the_hub) == 107
    for c in on_the_hub:
        assert c.source == f"hf://timm/{c.name}"
        assert (c.top1 is None) == (c.top5 is None) == (c.classes != 1000)
        assert c.top1 is None or 59 < c.top1_v2 < c.top1 < min(c.top5, c.top1_real) < 99
        no_side = c.name.startswith("convit") or "dinov" in c.name
        assert no_side or f"_{c.image_size}" in c.name
        assert ("distilled" in c.name) == c.distillation_token
    assert len(catalog.CHECKPOINTS) == 107 + 5 + len(SHIPPED)


@pytest.mark.parametrize("checkpoint", catalog.CHECKPOINTS, ids=lambda c: c.name)
def test_every_checkpoint_fits_what_it_says(checkpoint):
    for name in checkpoint.fits:
        constructor = kv.models.MODELS[name]
        arguments = TOKEN if checkpoint.distillation_token else {}
        parameters = inspect.signature(getattr(kv, constructor.family)).parameters
        assert not arguments or "distillation_token" in parameters
        assert find(checkpoint.name, name, **arguments) is checkpoint
    assert Image.Resampling[checkpoint.preprocessing.interpolation.upper()]


def test_a_model_that_starts_from_anothers_weights_is_said(caplog):
    find_source("imagenet", "ViT_Ti")
    assert "starts from them" not in caplog.text
    find_source("imagenet", "CBViT_Ti")
    assert "weights of ViT_Ti; a CBViT_Ti starts from them" in caplog.text
