import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx import segmentation

pytestmark = pytest.mark.backend_free


@pytest.fixture
def segmenter(tmp_path):
    keras.utils.set_random_seed(0)
    network = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 24, 3), include_top=False)
    names = ("wall", "floor", "sky")
    model = segmentation.LinearHead(kv.features(network), 3, class_names=names)
    for weight in model.weights:
        noise = np.random.default_rng(0).normal(0, 0.3, weight.shape)
        weight.assign(weight + np.abs(noise).astype("float32"))
    model.save(tmp_path / "last.keras")
    return model


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        path = tmp_path / "photos" / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 40, 3), "uint8")).save(path)
    return tmp_path / "photos"


def test_segment(run, segmenter, photos, tmp_path):
    code, out, err = run("segment", "last.keras", photos, "-o", "masks", "--overlay", "--json")
    assert code == 0, err
    rows, labels = json.loads(out), []
    for path in sorted(photos.iterdir()):
        expected = segmentation.predict(segmenter, path).argmax(-1)
        with Image.open(tmp_path / "masks" / f"{path.stem}.png") as mask:
            assert mask.mode == "P"
            np.testing.assert_array_equal(np.asarray(mask), expected)
        image = kv.data.decode_image(path)
        np.testing.assert_array_equal(
            kv.data.decode_image(tmp_path / "masks" / f"{path.stem}-overlay.png"),
            segmentation.overlay(image, expected),
        )
        shares = {row["class"]: row["share"] for row in rows if row["file"] == str(path)}
        counts = np.bincount(expected.ravel(), minlength=3) / expected.size
        names = dict(zip(segmenter.class_names, counts, strict=True))
        assert shares == pytest.approx({name: share for name, share in names.items() if share})
        labels += [expected]
    assert len(np.unique(labels)) > 1
    code, out, err = run(
        "segment", "last.keras", photos, "-o", "masks", "--mode", "slide", "--overwrite"
    )
    assert code == 0 and "%" in out
    with Image.open(tmp_path / "masks" / "a.png") as mask:
        slid = segmentation.predict(segmenter, photos / "a.jpg", "slide").argmax(-1)
        np.testing.assert_array_equal(np.asarray(mask), slid)


def test_an_image_that_cannot_be_decoded(run, segmenter, photos, tmp_path):
    (photos / "a.jpg").write_bytes(b"no image")
    code, out, err = run("segment", "last.keras", photos, "-o", "masks")
    assert code == 1 and "Skipped 1 of 2 images" in err and "b.jpg" in out
    assert [path.name for path in (tmp_path / "masks").iterdir()] == ["b.png"]


def test_one_clear_error(run, segmenter, photos, tiny_file, tmp_path):
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "b.png").write_bytes(b"mine")
    (tmp_path / "a.png").write_bytes((photos / "a.jpg").read_bytes())
    for words, said in (
        ((tiny_file, photos), "(None, 2)"),
        (("CaiT_Mini", photos), "one class per image"),
        (("last.keras", photos), "b.png already exists"),
        (("last.keras", tmp_path / "a.png", photos / "a.jpg"), "such as 'a'"),
        (("gone.keras", photos / "a.jpg"), "no file 'gone.keras'"),
        (("last.keras", "gone.jpg"), "gone.jpg"),
    ):
        folder = "masks" if "exists" in said else "new"
        code, out, err = run("segment", *words, "-o", folder, "--strict")
        assert code == 2 and not out and said in err, (words, err)
        assert err.startswith("Error: ") and err.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "masks" / "b.png").read_bytes() == b"mine"
