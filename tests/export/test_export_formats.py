"""Each format from the backend of this run, opened in its own runtime."""

import importlib
import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, ROOT, array, close, randomize, run_python

import keras_vitx as kv
from keras_vitx.export.convert import convert
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.prepare import output_names

module = importlib.import_module("keras_vitx.export.export")


def quiet(model, path, format, **options):
    return kv.export(model, path, format, verbose=False, **options)


def operations_of(path):
    import onnx

    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "saved_model"])
def test_format(format, trained, values, values_before, tmp_path):
    path = tmp_path / f"model{FORMATS[format].suffix}"
    exported = quiet(trained, path, format)
    assert exported.difference <= 1e-5 and exported.top1 == 1 and exported.latency_ms > 0
    assert exported.outputs == ("probabilities",) and exported.not_fused is None
    assert exported.inputs == {"images": {"shape": [None, 32, 16, 3], "dtype": "float32"}}
    assert exported.size == sum(
        file.stat().st_size for file in tmp_path.iterdir() if file.suffix != ".json"
    )
    if format == "onnx":
        # Two per block, one at the end; none of their parts is left.
        operations = operations_of(path)
        assert operations.count("LayerNormalization") == 7 and operations.count("Gelu") == 3
        assert "ReduceMean" not in operations
    if format == BACKEND == "torch":
        import torch

        program = torch.export.load(path)
        # Neither casts to a tensor's own dtype nor this machine's paths.
        assert not any("aten.to" in str(node.target) for node in program.graph.nodes)
        assert str(ROOT).encode() not in path.read_bytes()
    record = json.loads((tmp_path / f"{path.name}.json").read_text())
    assert record["difference"] == exported.difference and record["versions"]["keras"]
    for value, before in zip(values(trained), values_before, strict=True):
        np.testing.assert_array_equal(value, before)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="one process for all of them")
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "CaiT"])
def test_families(family, tmp_path):
    model = FAMILIES[family]()
    randomize(model)
    quiet(model, tmp_path / "model.tflite", "litert")


def test_pixels_in_and_logits_out_in_half_precision(tmp_path, monkeypatch):
    format = {"tensorflow": "litert", "jax": "stablehlo", "torch": "torch"}[BACKEND]
    model = FAMILIES["ViT"]()
    randomize(model)
    path = tmp_path / f"model{FORMATS[format].suffix}"
    normalized = []

    def write(graph, *rest):
        normalized.append(graph.model.layers[-2])
        return convert(graph, *rest)

    monkeypatch.setattr(module, "convert", write)
    options = {"preprocessing": (20, 24), "outputs": "logits", "precision": "float16"}
    exported = quiet(model, path, format, **options)
    assert exported.inputs["images"] == {"shape": [None, 20, 24, 3], "dtype": "uint8"}
    assert exported.outputs == ("logits",) and 0 < exported.difference < 0.02
    assert len(normalized) == 1 and normalized[0].normalize is False
    # `verify` reads the options in the record.
    assert kv.export.verify(path, model, trust=True) == pytest.approx(exported.difference, abs=1e-3)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's")
def test_several_image_sizes_share_their_weights(tmp_path):
    import tensorflow as tf

    model = FAMILIES["PiT"](dims=(16, 32))
    randomize(model)
    one = quiet(model, tmp_path / "one", "saved_model", verify=False)
    two = quiet(model, tmp_path / "two", "saved_model", image_sizes=[(26, 21)])
    assert two.difference <= 1e-5
    weights = "variables/variables.data-00000-of-00001"
    sizes = [(each.path / weights).stat().st_size for each in (one, two)]
    assert sizes[1] < 1.2 * sizes[0]
    served = tf.saved_model.load(two.path).signatures["serve_26x21"]
    images = np.random.default_rng(0).normal(size=(2, 26, 21, 3)).astype("float32")
    expected = array(model.at_size((26, 21))(images))
    close(served(images=tf.constant(images))["probabilities"].numpy(), expected)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="converted from TensorFlow")
def test_half_precision_and_int8_in_litert(tiny, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = tiny(depth=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert quiet(mixed, tmp_path / "mixed.tflite", "litert").difference < 0.05
    assert mixed.layers[-2].compute_dtype == "bfloat16", "the model keeps its precision"
    rounded = tiny(depth=1)
    rounded.quantize("int8")
    assert quiet(rounded, tmp_path / "int8.tflite", "litert").difference < 0.05


def functional(activation=None, **options):
    images = keras.Input((8, 8, 3), **options)
    x = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(images, keras.layers.Dense(4, activation=activation, name="a")(x))


@pytest.mark.backend_free
def test_names_of_outputs():
    assert output_names(functional()) == ("logits",)
    assert output_names(functional("softmax")) == ("probabilities",)
    assert output_names(FAMILIES["ViT"](include_top=False)) == ("features",)
    assert output_names(FAMILIES["RefinedViT"](dense_head=True)) == ("probabilities",)
    model = functional()
    whole = keras.Model(model.input, model(model.input))
    assert output_names(whole) == ("logits",)
    other = keras.layers.Dense(2, name="b")(model.layers[-2].output)
    assert output_names(keras.Model(model.input, [model.output, other])) == ("a", "b")
    named = keras.Model(model.input, {"head": model.output, "aux": other})
    assert output_names(named) == ("aux", "head")


@pytest.mark.backend_free
def test_logits_and_probabilities_of_any_classifier():
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    prepare = importlib.import_module("keras_vitx.export.prepare")
    for model in (functional("softmax"), FAMILIES["ViT"](input_shape=(8, 8, 3))):
        logits = prepare.with_outputs(model, "logits")
        again = prepare.with_outputs(logits, "probabilities")
        assert prepare.output_names(logits) == ("logits",)
        close(array(keras.ops.softmax(logits(images))), array(model(images)))
        close(array(again(images)), array(model(images)))
    with pytest.raises(ValueError, match="needs a model that ends in a classifier"):
        prepare.with_outputs(FAMILIES["ViT"](include_top=False), "logits")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "path, format, options, message",
    [
        ("m", "tflite", {}, r"format: 'tflite' is unknown(.|\n)*litert +.tflite +tensorflow, ai_"),
        ("m.tflite", "onnx", {}, r"path should end in \.onnx"),
        ("m", "saved_model", {"preprocessing": 224}, "preprocessing should be True, False"),
        ("m", "saved_model", {"outputs": "classes"}, "outputs should be None"),
        ("m", "saved_model", {"precision": "int8"}, "precision: 'int8' is not available"),
        ("m.pt2", "torch", {"image_sizes": [(8, 8)]}, "image_sizes should be empty except"),
        ("m", "saved_model", {"image_sizes": [8]}, "image_sizes should be"),
        ("m", "saved_model", {"images": np.zeros((2, 8, 8, 3))}, "images should be"),
    ],
)
def test_wrong_arguments(unused, tmp_path, path, format, options, message):
    with pytest.raises(ValueError, match=message):
        quiet(unused, tmp_path / path, format, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.backend_free
@pytest.mark.parametrize("format, extra", [("onnx", "onnx"), ("openvino", "openvino")])
def test_a_missing_runtime_is_named(unused, tmp_path, monkeypatch, format, extra):
    formats = importlib.import_module("keras_vitx.export.formats")
    package = FORMATS[format].needs[-1]
    monkeypatch.setattr(formats, "_is_installed", lambda name: name != package)
    with pytest.raises(ImportError, match=rf'needs {package}.*pip install "\.\[{extra}\]"'):
        quiet(unused, tmp_path / f"m{FORMATS[format].suffix}", format)


@pytest.mark.backend_free
def test_files_of_the_user_are_kept(unused, tmp_path):
    (tmp_path / "notes.onnx").write_text("mine")
    with pytest.raises(FileExistsError, match="holds other things than ONNX data"):
        quiet(unused, tmp_path / "notes.onnx", "onnx", overwrite=True)
    (tmp_path / "model.bin").write_text("mine")
    with pytest.raises(FileExistsError, match="exists, where a file of OpenVINO"):
        quiet(unused, tmp_path / "model.xml", "openvino", overwrite=True)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        quiet(unused, tmp_path / "model.bin" / "model.onnx", "onnx")
    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["mine", "mine"]


@pytest.mark.backend_free
def test_a_file_and_its_companions_are_replaced_together(unused, tmp_path, monkeypatch):
    def write(graph, format, path, imports, batches):
        path.write_text("<?xml new")
        path.with_suffix(".bin").write_text("new")

    monkeypatch.setattr(module, "convert", write)
    quiet(unused, tmp_path / "model.xml", "openvino", verify=False)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        quiet(unused, tmp_path / "model.xml", "openvino", verify=False)
    quiet(unused, tmp_path / "model.xml", "openvino", overwrite=True, verify=False)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["model.bin", "model.xml", "model.xml.json"]


@pytest.mark.backend_free
def test_a_full_disk_is_one_error(unused, tmp_path):
    """A limit of the file size stands for a full disk: a write fails halfway."""
    code = (
        "import resource, signal, sys, keras_vitx as kv\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "model = kv.ViT(24, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    kv.export(model, sys.argv[1], 'torch', verify=False)\n"
        "except OSError as error:\n"
        "    print('said', error)\n"
    )
    done = run_python(code, tmp_path / "model.pt2")
    assert done.stdout.startswith("said"), done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


KILLED = """
import importlib, os, pathlib, sys
import keras_vitx as kv

module = importlib.import_module("keras_vitx.export.export")

def write(graph, format, path, imports, batches):
    path.write_bytes(b"PK half")
    print("writing", flush=True)
    import time; time.sleep(60)

module.convert = write
model = kv.ViT(24, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)
kv.export(model, sys.argv[1], "torch", overwrite=True, verify=False)
"""


@pytest.mark.backend_free
def test_a_killed_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"PK old")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"PK old" and not (tmp_path / "model.pt2.json").exists()


OWN = {"tensorflow": "saved_model", "jax": "stablehlo", "torch": "torch"}[BACKEND]


def test_channels_first(tmp_path):
    model = FAMILIES["ViT"]()
    randomize(model)
    path = tmp_path / f"model{FORMATS[OWN].suffix}"
    options = {"data_format": "channels_first", "preprocessing": (20, 24)}
    exported = quiet(model, path, OWN, **options)
    assert exported.difference <= 1e-5
    assert exported.inputs["images"]["shape"] == [None, 3, 20, 24]
    assert kv.export.verify(path, model, trust=True) <= 1e-5
    with pytest.raises(ValueError, match="`data_format` must be"):
        quiet(model, tmp_path / "other", "saved_model", data_format="NCHW")


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch writes them")
@pytest.mark.parametrize("format, dtype", [("torch", "bfloat16"), ("onnx", "float16")])
def test_products_in_half_precision(format, dtype, tmp_path):
    model = FAMILIES["CaiT"]()
    randomize(model)
    path = tmp_path / f"model{FORMATS[format].suffix}"
    exported = quiet(model, path, format, compute_dtype=dtype)
    assert 0 < exported.difference < 0.05
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
    if format == "torch":
        import torch

        nodes = torch.export.load(path).graph.nodes
        products = [node for node in nodes if "linear" in str(node.target)]
    else:
        import onnx

        graph = onnx.load(path).graph
        half = {
            each.name for each in graph.initializer if each.data_type == onnx.TensorProto.FLOAT16
        }
        products = [node for node in graph.node if node.op_type == "MatMul"]
        weighted = [node for node in products if set(node.input) & half]
        assert len(weighted) > len(products) / 3
    assert products
    with pytest.raises(ValueError, match="`compute_dtype` must be None or"):
        quiet(model, tmp_path / "m.xml", "openvino", compute_dtype=dtype)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow writes it")
def test_mixed_bfloat16_in_openvino(tiny, tmp_path):
    pytest.importorskip("openvino")
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = tiny(depth=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert quiet(mixed, tmp_path / "mixed.xml", "openvino").difference < 0.05


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch writes it")
def test_upernet_in_torch(tmp_path):
    backbone = kv.features(FAMILIES["ViT"](depth=4, input_shape=(32, 32, 3)), range(4))
    model = kv.segmentation.UperNet(backbone, 3, channels=8, scales=(2, 1, 1, 0.5))
    randomize(model)
    assert quiet(model, tmp_path / "model.pt2", "torch").difference <= 1e-5
