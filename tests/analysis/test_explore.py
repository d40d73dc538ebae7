"""The page: its maps, measures and metadata."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from harness import FAMILIES, randomized
from PIL import Image

import keras_vitx as kv
from keras_vitx.analysis import attribute, explore, measure, trace
from keras_vitx.analysis.page import quantize

PICTURES = np.random.default_rng(0).integers(0, 256, (2, 24, 20, 3), "uint8")


SCRIPT = re.compile(r'<script[^>]* (?:id|data-maps)="([^"]+)"[^>]*>(.*?)</script>', re.DOTALL)


def weights(low, step, _, levels):
    return low[..., None] + step[..., None] * levels


def read(path):
    """Return the metadata of a page, and its maps by image, block and stage."""
    scripts = dict(SCRIPT.findall(path.read_text("utf-8")))
    metadata, maps = json.loads(scripts.pop("metadata")), {}
    for name, text in scripts.items():
        _, block, stage = name.split("/")
        shape = metadata["blocks"][int(block)]["stages"][stage]
        # As the script of the page reads them: a minimum, a step and a sum per row, then levels.
        content, rows = zlib.decompress(base64.b64decode(text)), shape[0] * shape[1]
        per_row = np.frombuffer(content, "<f4", 3 * rows).reshape(3, *shape[:2])
        levels = np.frombuffer(content, "uint8", offset=12 * rows).reshape(shape)
        maps[name] = weights(*per_row, levels)
    return metadata, maps


@pytest.mark.backend_free
@pytest.mark.parametrize("family", ("ConViT", "RefinedViT", "PiT"))
def test_maps_and_measures_are_those_of_the_model(family, tmp_path):
    model = randomized(family)
    metadata, maps = read(explore(model, PICTURES, tmp_path / "page.html"))
    for number, image in enumerate(metadata["images"]):
        pixels = kv.preprocess_input(PICTURES[number], model)
        for block in trace(model, pixels):
            stages = {"before": block.before, "after": block.maps}
            if block.before is block.maps:
                del stages["before"]
            assert set(metadata["blocks"][block.index]["stages"]) == set(stages)
            for stage, expected in stages.items():
                found = maps.pop(f"{number}/{block.index}/{stage}")
                step = np.ptp(expected[0], axis=-1, keepdims=True) / 47
                assert (np.abs(found - expected[0]) <= 0.5 * step + 1e-6).all()
        entropy = measure(model, pixels, ["entropy"])["entropy"]
        for block, values in zip(metadata["blocks"], image["measures"]["entropy"], strict=True):
            wanted = entropy.get(block["name"])
            assert wanted is values or values == pytest.approx(wanted, rel=1e-3, abs=1e-4)
        for method, values in image["attributions"].items():
            wanted = attribute(model, pixels, method).ravel()
            assert values == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    assert not maps
    assert ("gates" in metadata["images"][0]["measures"]) == (family == "ConViT")


@pytest.mark.backend_free  # TensorFlow refuses the model's name.
def test_the_page_needs_nothing_else(tmp_path):
    model = randomized("CaiT", name="a<b>")
    names = ["</script><script>alert(1)", "a & b"]
    page = explore(model, list(PICTURES), tmp_path / "page.html", names=names).read_text("utf-8")
    assert [image["name"] for image in read(tmp_path / "page.html")[0]["images"]] == names
    assert "<title>Attention of a&lt;b&gt;</title>" in page
    # The address of SVG's namespace is a name; nothing is loaded from it.
    assert {*re.findall(r"https?://[^\s\"'<>]+", page)} == {"http://www.w3.org/2000/svg"}
    assert not {"link", "iframe", "object"} & set(re.findall(r"<(\w+)", page))
    assert not re.search(r"<script[^>]+src=|@import|url\(", page)


@pytest.mark.backend_free
def test_predictions_and_pictures(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = randomized("ViT")
    model.class_names = tuple("abcde")
    Image.fromarray(PICTURES[0]).save(tmp_path / "one.png")
    metadata, _ = read(explore(model, tmp_path / "one.png", "~/page.html"))
    (image,) = metadata["images"]
    assert image["name"] == "one.png" and image["source"].startswith("data:image/png;base64,")
    expected = model.predict_on_batch(kv.preprocess_input(PICTURES[:1], model))[0]
    found = dict(image["classes"])
    assert [found[name] for name in "abcde"] == pytest.approx(expected.tolist(), rel=1e-3)


@pytest.mark.backend_free
def test_chosen_blocks_and_heads(tmp_path):
    model = randomized("CaiT")
    path = tmp_path / "page.html"
    metadata, maps = read(explore(model, PICTURES[0], path, blocks=[1, "blocks_token_only_0"]))
    assert set(maps) == {"0/1/before", "0/1/after", "0/3/after"}
    assert None not in metadata["images"][0]["measures"]["entropy"]
    whole = maps["0/1/after"]
    _, maps = read(explore(model, PICTURES[0], path, blocks=[1], heads="mean"))
    np.testing.assert_allclose(maps["0/1/after"], whole.mean(0, keepdims=True), atol=2e-2)
    _, maps = read(explore(model, PICTURES[0], path, blocks=[1], heads=[1]))
    np.testing.assert_allclose(maps["0/1/after"], whole[1:2], atol=1e-6)


@pytest.mark.backend_free
def test_sums_are_those_of_the_maps_that_were_not_rounded():
    maps = np.exp(np.random.default_rng(0).normal(size=(2, 3, 257)))
    maps /= maps.sum(-1, keepdims=True)
    quantized = quantize(maps, 48)
    np.testing.assert_allclose(quantized[2], 1, rtol=1e-6)
    assert np.abs(weights(*quantized).sum(-1) - 1).max() > 1e-5


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("family", "arguments", "expected"),
    [
        ("ViT", {"register_tokens": 2}, ["class token", "register 1", "register 2"]),
        ("PiT", {"distillation_token": True}, ["class token", "distillation token"]),
        ("CaiT", {}, []),
    ],
)
def test_tokens_before_the_patches_have_names(family, arguments, expected, tmp_path):
    metadata, _ = read(explore(FAMILIES[family](**arguments), PICTURES, tmp_path / "page.html"))
    assert metadata["blocks"][0]["prefix"] == expected


@pytest.mark.backend_free
def test_the_page_says_what_it_shows(tmp_path):
    model, path = FAMILIES["CaiT"](), tmp_path / "page.html"
    metadata, _ = read(explore(model, PICTURES, path, about="best.keras"))
    assert metadata["weights"] == "random weights" and metadata["about"].startswith("best.keras, 2")
    labels = [block["label"] for block in metadata["blocks"]]
    assert labels[0] == "block 0" and labels[-1] == "class attention 0"
    assert read(explore(randomized("CaiT"), PICTURES, path))[0]["weights"] == "trained weights"
