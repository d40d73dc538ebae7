import importlib

import keras
import numpy as np
import pytest

from keras_vitx.export import saved_model
from keras_vitx.export.compare import Comparison

# The function of the same name shadows the module.
module = importlib.import_module("keras_vitx.export.export")
formats = importlib.import_module("keras_vitx.export.formats")

BACKEND = keras.backend.backend()


def outputs_of(model, images):
    return keras.ops.convert_to_numpy(keras.ops.cast(model(images, training=False), "float32"))


def test_export_says_where_and_how_close(exported, trained, images):
    assert (exported.path / "saved_model.pb").is_file()
    # Outputs were compared for one image and for three, in a process without Keras.
    assert 0 <= exported.difference <= 1e-5
    # Outputs equal for all images would make the comparison meaningless.
    assert outputs_of(trained, images(3)).std(axis=0).max() > 1e-3


def test_model_in_memory_stays_as_it_is(exported, trained, values, values_before, images):
    for value, before in zip(values(trained), values_before, strict=True):
        np.testing.assert_array_equal(value, before)
    assert trained.compiled
    assert {layer.dtype_policy.name for layer in trained.layers} == {"float32"}
    assert np.isfinite(trained.test_on_batch(images(4), np.arange(4))).all()


def test_features_in_mixed_precision(tiny, images, tmp_path, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = tiny(include_top=False)
    finally:
        keras.config.set_dtype_policy("float32")
    exported = saved_model(model, "features", verify=False)
    assert (exported.path, exported.difference) == (module.Path("features"), None)
    loaded = tf.saved_model.load("features")
    served = loaded.signatures["serving_default"]
    (spec,) = served.structured_input_signature[1].values()
    assert (spec.dtype, spec.shape.as_list()) == (tf.float32, [None, 32, 16, 3])
    output = loaded.serve(images(3))
    (named,) = served(tf.constant(images(3))).values()
    assert tf.reduce_all(named == output)
    # (class token + 4 x 2 patches), and bfloat16: the precision is kept.
    assert output.shape == (3, 9, 24)
    assert output.dtype == tf.bfloat16
    expected = outputs_of(model, images(3))
    np.testing.assert_allclose(tf.cast(output, "float32"), expected, atol=0.05 * expected.max())
    assert loaded.serve(images(1)).shape == (1, 9, 24)


@pytest.fixture
def broken_writer(monkeypatch):
    """Writing fails halfway."""

    def fail(graph, format, folder, imports, batches):
        folder.mkdir()
        (folder / "saved_model.pb").write_bytes(b"half")
        raise ChildProcessError("no space")

    monkeypatch.setattr(module, "convert", fail)


def test_failure_leaves_nothing_behind(unused, tmp_path, broken_writer):
    with pytest.raises(ChildProcessError, match="no space"):
        saved_model(unused, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_the_old_one(unused, old_saved_model, broken_writer):
    folder, is_intact = old_saved_model
    with pytest.raises(ChildProcessError, match="no space"):
        saved_model(unused, folder, overwrite=True)
    assert is_intact()


def test_one_that_differs_is_not_written(unused, images, tmp_path, monkeypatch):
    def convert(graph, format, path, imports, batches):
        assert [len(batch) for batch in batches.values()] == [1, 2]
        path.mkdir()

    monkeypatch.setattr(module, "convert", convert)
    monkeypatch.setattr(module, "compare", lambda *arguments: Comparison(0.75))
    with pytest.raises(ValueError, match=r"by 0\.75 .* tolerance is 0\.5"):
        saved_model(unused, tmp_path / "model", tolerance=0.5, images=images(2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["notes beside it", "file", "other folder", "link"])
def test_nothing_of_the_user_is_replaced(unused, old_saved_model, kind):
    folder, is_intact = old_saved_model
    path = folder
    if kind == "notes beside it":
        path = folder / "variables"
        (path / "saved_model.pb").write_bytes(b"")
        (path / "notes.txt").write_text("mine")
    elif kind == "file":
        path = folder / "saved_model.pb"
    elif kind == "other folder":
        path = folder / "variables"
    else:
        path = folder / "variables" / "link"
        path.symlink_to(folder)
    with pytest.raises(FileExistsError, match="other things than a SavedModel"):
        saved_model(unused, path, overwrite=True)
    assert is_intact()
    if kind == "notes beside it":
        assert (path / "notes.txt").read_text() == "mine"


def two_inputs():
    first, second = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    return keras.Model([first, second], keras.layers.Add()([first, second]))


def any_channels():
    images = keras.Input((8, 8, None))
    return keras.Model(images, keras.layers.Rescaling(2.0)(images))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: "CaiT_Mini", "built Keras model"),
        (lambda: keras.Sequential([keras.layers.Dense(2)]), "built Keras model"),
        (two_inputs, "should take one batch of images"),
        (any_channels, "should take one batch of images"),
    ],
)
def test_wrong_model_is_named(make, message, tmp_path):
    with pytest.raises(ValueError, match=f"model should.*{message}|{message}"):
        saved_model(make(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tolerance", [-1, float("nan"), "small"])
def test_wrong_tolerance_is_named(unused, tmp_path, tolerance):
    with pytest.raises(ValueError, match="tolerance should be"):
        saved_model(unused, tmp_path / "model", tolerance=tolerance)
