import importlib

import keras
import numpy as np
import pytest

from keras_vitx.export import verify

process = importlib.import_module("keras_vitx.export.process")


def test_another_model_is_told_apart(exported, tiny, images):
    with pytest.raises(ValueError, match=r"differs from model 'CaiT' by .*tolerance is 1e-05"):
        verify(exported.path, tiny(), images(2))


def test_difference_is_relative_to_the_largest_output(unused, images, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vitx.export.verify")
    (tmp_path / "saved_model.pb").touch()

    def run(script, path, inputs, outputs):
        assert path == tmp_path
        batches = np.load(inputs)
        assert [len(batches[name]) for name in batches] == [1, 4]
        saved = {}
        for name, batch in batches.items():
            expected = keras.ops.convert_to_numpy(unused(batch))
            saved[f"{name}.0"] = expected + (0.125 * expected.max() if name == "all" else 0)
        np.savez(outputs, **saved)

    monkeypatch.setattr(module, "run_python", run)
    assert verify(tmp_path, unused, images(4), tolerance=0.2) == pytest.approx(0.125, rel=1e-4)
    with pytest.raises(ValueError, match=r"by 0\.1[23] of its largest output; tolerance is 0\.1\."):
        verify(tmp_path, unused, images(4), tolerance=0.1)


def test_not_a_number_does_not_pass(unused, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vitx.export.verify")
    (tmp_path / "saved_model.pb").touch()

    def run(script, path, inputs, outputs):
        sizes = {f"{name}.0": len(batch) for name, batch in np.load(inputs).items()}
        np.savez(outputs, **{name: np.full((size, 5), np.nan) for name, size in sizes.items()})

    monkeypatch.setattr(module, "run_python", run)
    with pytest.raises(ValueError, match="by nan"):
        verify(tmp_path, unused)


@pytest.mark.parametrize("shape", [(32, 16, 3), (1, 32, 16, 3), (2, 16, 32, 3)])
def test_wrong_images_are_named(unused, tmp_path, shape):
    with pytest.raises(ValueError, match=r"images should be \(2 or more, 32, 16, 3\)"):
        verify(tmp_path, unused, np.zeros(shape, "float32"))


def test_no_saved_model(unused, tmp_path):
    with pytest.raises(FileNotFoundError, match="not the folder of a SavedModel"):
        verify(tmp_path, unused)


def test_without_tensorflow_says_what_to_install(unused, tmp_path, monkeypatch):
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "\.\[export\]"'):
        verify(tmp_path, unused)


def test_failed_process_gives_the_last_line_of_its_errors():
    code = "import sys; print('long story', file=sys.stderr); raise ValueError('the reason')"
    with pytest.raises(ChildProcessError, match="the reason") as failure:
        process.run_python("-c", code)
    assert failure.value.args == (
        "The process that runs TensorFlow failed: ValueError: the reason",
    )
    assert failure.value.__notes__[0].startswith("long story")


def test_process_that_says_nothing_gives_its_status():
    with pytest.raises(ChildProcessError, match="exit status 3"):
        process.run_python("-c", "raise SystemExit(3)")


def test_process_is_tensorflow_on_the_cpu_and_ignores_its_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('wrong numpy')")
    monkeypatch.chdir(tmp_path)
    code = (
        "import os, numpy; assert os.environ['KERAS_BACKEND'] == 'tensorflow'; "
        "assert os.environ['CUDA_VISIBLE_DEVICES'] == '-1'"
    )
    process.run_python("-c", code)
