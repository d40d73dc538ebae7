"""Each format from the backend of this run, opened in its own runtime."""

import json

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, ROOT, array, close, precision, randomize

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.graph import output_names, with_outputs

OWN = {"tensorflow": "saved_model", "jax": "stablehlo", "torch": "torch"}[BACKEND]
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow writes it")
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="PyTorch writes it")


def exported_to(directory, model, format, **options):
    path = directory / f"model{FORMATS[format].suffix}"
    return kv.export(model, path, format, verbose=False, **options)


def randomized(name, **options):
    model = FAMILIES[name](**options)
    randomize(model)
    return model


def operations_of(path):
    import onnx

    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("format", FORMATS)
def test_format(format, trained, values, images, tmp_path):
    before = values(trained)
    exported = exported_to(tmp_path, trained, format)
    path = exported.path
    # Outputs were compared for one image and for eight, in a process without Keras.
    assert exported.difference <= 1e-5 and exported.top1 == 1 and exported.latency_ms > 0
    assert exported.outputs == ("probabilities",) and exported.not_fused is None
    # Of images that are to be normalized before, with what.
    described = {"shape": [None, 32, 16, 3], "dtype": "float32"}
    described["preprocessing"] = trained.preprocessing.to_dict()
    assert exported.inputs == {"images": described}
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".json"]
    assert exported.size == sum(file.stat().st_size for file in files)
    record = path.with_name(f"{path.name}.json") if path.suffix else path / "export.json"
    record = json.loads(record.read_text())
    assert record["difference"] == exported.difference and record["versions"]["keras"]
    if format == "onnx":
        # Two per block, one at the end; none of their parts is left.
        operations = operations_of(path)
        assert operations.count("LayerNormalization") == 7 and operations.count("Gelu") == 3
        assert not {"ReduceMean", "Einsum"} & set(operations)
    if format == BACKEND == "torch":
        import torch

        program = torch.export.load(path)
        # Neither casts to a tensor's own dtype nor this machine's paths.
        assert not any("aten.to" in str(node.target) for node in program.graph.nodes)
        assert str(ROOT).encode() not in path.read_bytes()
    # The model is as it was. Equal outputs for all images would make the comparison meaningless.
    for value, old in zip(values(trained), before, strict=True):
        np.testing.assert_array_equal(value, old)
    assert {layer.dtype_policy.name for layer in trained.layers} == {"float32"}
    assert array(trained(images(3))).std(axis=0).max() > 1e-3


@pytest.mark.parametrize("format", ["litert", "onnx"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "CaiT"])
def test_families(format, family, tmp_path):
    if FORMATS[format].backend != BACKEND:
        pytest.skip(f"{FORMATS[format].backend} writes it")
    exported_to(tmp_path, randomized(family), format)


@on_torch
def test_an_operation_that_onnx_lacks_is_decomposed(tmp_path):
    images = keras.Input((8, 8, 3))
    x = keras.layers.Lambda(lambda x: keras.ops.logaddexp(x, 2.0 * x))(images)
    assert exported_to(tmp_path, keras.Model(images, x), "onnx").difference <= 1e-5


@pytest.mark.parametrize(
    "options, shape, output, largest",
    [
        ({"outputs": "logits", "precision": "float16"}, [None, 20, 24, 3], "logits", 0.02),
        ({"data_format": "channels_first"}, [None, 3, 20, 24], "probabilities", 1e-5),
    ],
)
def test_pixels_in(options, shape, output, largest, tmp_path):
    model = randomized("ViT")
    exported = exported_to(tmp_path, model, OWN, preprocessing=(20, 24), **options)
    assert exported.inputs["images"] == {"shape": shape, "dtype": "uint8"}
    assert exported.outputs == (output,) and 0 <= exported.difference < largest
    # `verify` reads the options in the record.
    difference = kv.export.verify(exported.path, model, trust=True)
    assert difference == pytest.approx(exported.difference, abs=1e-3)


@on_tensorflow
def test_several_image_sizes_share_their_weights(tmp_path):
    import tensorflow as tf

    model = randomized("PiT", dims=(16, 32))
    one = exported_to(tmp_path / "one", model, "saved_model", verify=False)
    two = exported_to(tmp_path / "two", model, "saved_model", image_sizes=[(26, 21)])
    assert two.difference <= 1e-5
    weights = "variables/variables.data-00000-of-00001"
    sizes = [(each.path / weights).stat().st_size for each in (one, two)]
    assert sizes[1] < 1.2 * sizes[0]
    served = tf.saved_model.load(two.path).signatures["serve_26x21"]
    images = np.random.default_rng(0).normal(size=(2, 26, 21, 3)).astype("float32")
    expected = array(model.at_size((26, 21))(images))
    close(served(images=tf.constant(images))["probabilities"].numpy(), expected)


@on_tensorflow
@pytest.mark.parametrize("format", ["litert", "openvino"])
def test_half_precision(format, tiny, tmp_path):
    for package in FORMATS[format].needs:
        pytest.importorskip(package)
    with precision("mixed_bfloat16"):
        model = tiny(depth=1)
    assert exported_to(tmp_path, model, format).difference < 0.05
    assert model.layers[-2].compute_dtype == "bfloat16", "the model keeps its precision"


@on_tensorflow
def test_features_in_mixed_precision(tiny, images, tmp_path):
    import tensorflow as tf

    with precision("mixed_bfloat16"):
        model = tiny(include_top=False)
    exported = exported_to(tmp_path, model, "saved_model", verify=False)
    assert exported.difference is None and exported.outputs == ("features",)
    loaded = tf.saved_model.load(exported.path)
    output = loaded.serve(images(3))
    # (class token + 4 x 2 patches), and bfloat16: the precision is kept.
    assert output.shape == (3, 9, 24) and output.dtype == tf.bfloat16
    expected = array(keras.ops.cast(model(images(3)), "float32"))
    np.testing.assert_allclose(tf.cast(output, "float32"), expected, atol=0.05 * expected.max())


@on_torch
@pytest.mark.parametrize("format, dtype", [("torch", "bfloat16"), ("onnx", "float16")])
def test_products_in_half_precision(format, dtype, tmp_path):
    model = randomized("CaiT")
    exported = exported_to(tmp_path, model, format, compute_dtype=dtype)
    assert 0 <= exported.difference < 0.05
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
    if format == "onnx":
        import onnx

        graph = onnx.load(exported.path).graph
        half = {
            each.name for each in graph.initializer if each.data_type == onnx.TensorProto.FLOAT16
        }
        products = [node for node in graph.node if node.op_type == "MatMul"]
        assert len([node for node in products if set(node.input) & half]) > len(products) / 3


@on_torch
def test_upernet_in_torch(tmp_path):
    backbone = kv.features(FAMILIES["ViT"](depth=4, input_shape=(32, 32, 3)), range(4))
    model = kv.segmentation.UperNet(backbone, 3, channels=8, scales=(2, 1, 1, 0.5))
    randomize(model)
    assert exported_to(tmp_path, model, "torch").difference <= 1e-5


def functional(activation=None):
    images = keras.Input((8, 8, 3))
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
    softmax = keras.Model(model.input, keras.ops.softmax(model.output))
    assert output_names(softmax) == ("probabilities",)
    other = keras.layers.Dense(2, name="b")(model.layers[-2].output)
    assert output_names(keras.Model(model.input, [model.output, other])) == ("a", "b")
    named = keras.Model(model.input, {"head": model.output, "aux": other})
    assert output_names(named) == ("aux", "head")


@pytest.mark.backend_free
def test_logits_and_probabilities_of_any_classifier():
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    for model in (functional("softmax"), FAMILIES["ViT"](input_shape=(8, 8, 3))):
        logits = with_outputs(model, "logits")
        again = with_outputs(logits, "probabilities")
        assert output_names(logits) == ("logits",)
        close(array(keras.ops.softmax(logits(images))), array(model(images)))
        close(array(again(images)), array(model(images)))
    with pytest.raises(ValueError, match="must end in a classifier"):
        with_outputs(FAMILIES["ViT"](include_top=False), "logits")
