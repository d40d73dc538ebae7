import pytest

from keras_vitx.weights import catalog, checkpoints_of, find, resolve


def test_ten_public_cait_checkpoints_and_a_shipped_one():
    assert len({c.name for c in catalog.CHECKPOINTS}) == len(catalog.CHECKPOINTS)
    public = [c for c in catalog.CHECKPOINTS if c.source.startswith("hf://timm/cait_")]
    assert len(public) == 10
    for checkpoint in public:
        assert checkpoint.source == f"hf://timm/{checkpoint.name}"
        assert str(checkpoint.image_size) in checkpoint.name
        size = checkpoint.constructor.removeprefix("CaiT_")
        assert checkpoint.url.endswith(f"/{size}_{checkpoint.image_size}.pth")
        assert (checkpoint.classes, checkpoint.crop_ratio) == (1000, 1.0)
        assert 78 < checkpoint.top1 < 87


def test_shipped_checkpoint_names_its_classes():
    (checkpoint,) = checkpoints_of("CaiT_Mini")
    assert checkpoint.name == "cifar10"
    assert len(checkpoint.class_names) == checkpoint.classes == 10


@pytest.mark.parametrize(
    ("image_size", "expected"),
    [(None, 224), (224, 224), (384, 384), (256, 224), ((512, 256), 384), ([224, 224], 224)],
)
def test_imagenet_is_the_nearest_resolution(image_size, expected):
    assert find("imagenet", "CaiT_XXS24", image_size).image_size == expected


def test_find_by_name():
    assert find("cait_s36_384.fb_dist_in1k", "CaiT_S36").top1 == 85.458
    assert find("cait_s36_384.fb_dist_in1k", None).constructor == "CaiT_S36"


@pytest.mark.parametrize("constructor", ["CaiT_XS36", "CaiT_S48", "CaiT_M24"])
def test_sizes_without_public_checkpoint_say_so(constructor):
    with pytest.raises(ValueError, match=f"{constructor} has no public.*No checkpoint"):
        resolve("imagenet", constructor)


@pytest.mark.parametrize(
    ("weights", "constructor", "words"),
    [
        ("imagnet", "CaiT_XXS24", "Did you mean 'imagenet'"),
        ("cait_xxs24_225.fb_dist_in1k", "CaiT_XXS24", "'cait_xxs24_224.fb_dist_in1k'"),
        ("cait_s36_384.fb_dist_in1k", "CaiT_XXS24", "checkpoint of CaiT_S36, not of CaiT_XXS24"),
        ("imagenet", "CaiT_Mini", "It has: cifar10"),
        ("imagenet", None, "needs the constructor"),
        (3, None, "not 3"),
    ],
)
def test_wrong_names(weights, constructor, words):
    with pytest.raises(ValueError, match="weights") as caught:
        resolve(weights, constructor)
    assert words in str(caught.value)


def test_none_is_none():
    assert resolve(None, "CaiT_XXS24") is None


def test_a_folder_named_imagenet_does_not_hide_the_name(tmp_path, monkeypatch):
    (tmp_path / "imagenet").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="CaiT_S48 has no public"):
        resolve("imagenet", "CaiT_S48")
