import importlib

import keras
import numpy as np
import pytest

from keras_vitx.export import verify
from keras_vitx.export.compare import batches_for
from keras_vitx.layers import ImagePreprocessing

# Exports from each backend are compared in test_export_saved_model.py.
pytestmark = pytest.mark.backend_free
formats = importlib.import_module("keras_vitx.export.formats")
convert = importlib.import_module("keras_vitx.export.convert")


def test_difference_is_relative_to_the_largest_output(unused, images, tmp_path, monkeypatch):
    (tmp_path / "saved_model.pb").touch()

    def run(script, format, path, inputs, outputs, backend):
        assert path == tmp_path
        batches = np.load(inputs)
        assert [len(batch) for batch in batches.values()] == [1, 4]
        saved = {}
        for name, batch in batches.items():
            expected = keras.ops.convert_to_numpy(unused(batch))
            saved[f"{name}.probabilities"] = expected + (
                0.125 * expected.max() if len(batch) > 1 else 0
            )
        np.savez(outputs, **saved)

    monkeypatch.setattr(convert, "run_python", run)
    assert verify(tmp_path, unused, images(4), tolerance=0.2, trust=True) == pytest.approx(
        0.125, rel=1e-4
    )
    with pytest.raises(ValueError, match=r"by 0\.1[23] of its largest output; tolerance is 0\.1\."):
        verify(tmp_path, unused, images(4), tolerance=0.1, trust=True)


def test_not_a_number_does_not_pass(unused, tmp_path, monkeypatch):
    (tmp_path / "saved_model.pb").touch()

    def run(script, format, path, inputs, outputs, backend):
        sizes = {f"{name}.probabilities": len(batch) for name, batch in np.load(inputs).items()}
        np.savez(outputs, **{name: np.full((size, 5), np.nan) for name, size in sizes.items()})

    monkeypatch.setattr(convert, "run_python", run)
    with pytest.raises(ValueError, match="by nan"):
        verify(tmp_path, unused, trust=True)


@pytest.mark.parametrize("shape", [(32, 16, 3), (1, 32, 16, 3), (2, 16, 32, 3)])
def test_wrong_images_are_named(unused, tmp_path, shape):
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ValueError, match=r"images should be \(2 or more, 32, 16, 3\)"):
        verify(tmp_path, unused, np.zeros(shape, "float32"), trust=True)


def network(*shape, dtype="uint8", layer=None, **options):
    images = keras.Input(shape, dtype=dtype, **options)
    layer = layer or keras.layers.Conv2D(2, 1)
    return keras.Model(images, layer(keras.ops.cast(images, "float32")))


@pytest.mark.parametrize(
    "model, shapes",
    [
        (network(None, None, 3), [(8, 96, 128, 3), (8, 160, 112, 3)]),
        (network(None, 8, 1), [(8, 96, 8, 1), (8, 160, 8, 1)]),
        (network(8, 8, 3, batch_size=1), [(1, 8, 8, 3)]),
        (network(8, 8, 4), [(8, 8, 8, 4)]),
    ],
    ids=["any size", "any height", "one image", "four channels"],
)
def test_images_have_the_form_that_the_model_takes(model, shapes):
    batches = batches_for(model)
    assert [batch.shape for batch in batches] == shapes
    assert all(batch.dtype == np.uint8 and batch.std() > 50 for batch in batches)


def test_images_are_pixels_for_a_model_with_preprocessing_inside():
    layers = (ImagePreprocessing((8, 8), [0.5], [0.5]), keras.layers.Rescaling(1 / 255))
    for layer in layers:
        (images,) = batches_for(network(8, 8, 1, dtype="float32", layer=layer))
        assert images.dtype == np.float32
        assert images.min() >= 0 and images.max() > 200
    (images,) = batches_for(network(8, 8, 1, dtype="float32"))
    assert images.min() < 0


def test_own_images_of_several_sizes():
    model = network(None, 8, 3)
    given = [np.full((2, 8, 8, 3), 7.0), np.full((4, 9, 8, 3), 255, "int32")]
    batches = batches_for(model, given)
    assert [batch.shape for batch in batches] == [(2, 8, 8, 3), (4, 9, 8, 3)]
    assert all(batch.dtype == np.uint8 for batch in batches) and batches[1].min() == 255
    with pytest.raises(ValueError, match=r"images should be \(2 or more, any, 8, 3\)"):
        batches_for(model, [*given, np.zeros((2, 8, 9, 3), "uint8")])
    for wrong in (0.5, -1, 256):
        with pytest.raises(ValueError, match="images should hold values of uint8"):
            batches_for(model, np.full((2, 8, 8, 3), wrong))


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "int8", "float8", "float32"])
def test_tolerance_goes_by_the_precision_of_inner_layers(tiny, tmp_path, monkeypatch, precision):
    module = importlib.import_module("keras_vitx.export.compare")
    (tmp_path / "saved_model.pb").touch()
    if precision.startswith("mixed"):
        keras.config.set_dtype_policy(precision)
    try:
        inner = tiny(depth=1)
    finally:
        keras.config.set_dtype_policy("float32")
    if not precision.startswith(("mixed", "float32")):
        inner.quantize(precision)
    model = keras.Model(inner.input, keras.layers.Identity()(inner.output))

    def run(script, format, path, inputs, outputs, backend):
        batches = np.load(inputs).items()
        given = {
            f"{name}.probabilities": 1.02 * module.outputs_of(model, batch)[0]
            for name, batch in batches
        }
        np.savez(outputs, **given)

    monkeypatch.setattr(convert, "run_python", run)
    if precision == "float32":
        with pytest.raises(ValueError, match="tolerance is 5e-05"):
            verify(tmp_path, model, trust=True)
    else:
        assert 0.01 < verify(tmp_path, model, trust=True) < 0.03


def test_a_file_that_can_do_more_than_compute_must_be_trusted(unused, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="must be a file that you trust"):
        verify(tmp_path, unused)


def test_no_saved_model(unused, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a SavedModel"):
        verify(tmp_path, unused)


def test_failed_process_gives_the_last_line_of_its_errors():
    code = "import sys; print('long story', file=sys.stderr); raise ValueError('the reason')"
    with pytest.raises(ChildProcessError, match="the reason") as failure:
        convert.run_python("-c", code, backend="tensorflow")
    assert failure.value.args == ("The second process (tensorflow) failed: ValueError: the reason",)
    assert failure.value.__notes__[0].startswith("long story")


def test_process_that_says_nothing_gives_its_status():
    with pytest.raises(ChildProcessError, match="exit status 3"):
        convert.run_python("-c", "raise SystemExit(3)", backend="tensorflow")


def test_process_is_tensorflow_on_the_cpu_and_ignores_its_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('wrong numpy')")
    monkeypatch.chdir(tmp_path)
    code = (
        "import os, numpy; assert os.environ['KERAS_BACKEND'] == 'tensorflow'; "
        "assert os.environ['CUDA_VISIBLE_DEVICES'] == '-1'"
    )
    convert.run_python("-c", code, backend="tensorflow")
