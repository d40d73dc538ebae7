"""Each format from the backend of this run, opened in its own runtime."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, ROOT, array, close, precision, randomize

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.graph import output_names, with_outputs
from keras_vitx.keras_internals import sublayers

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
    def names(model):
        return output_names(model)[1]

    assert names(functional()) == ("logits",)
    assert names(functional("softmax")) == ("probabilities",)
    assert names(FAMILIES["ViT"](include_top=False)) == ("features",)
    assert names(FAMILIES["RefinedViT"](dense_head=True)) == ("probabilities",)
    model = functional()
    whole = keras.Model(model.input, model(model.input))
    assert names(whole) == ("logits",)
    softmax = keras.Model(model.input, keras.ops.softmax(model.output))
    assert names(softmax) == ("probabilities",)
    other = keras.layers.Dense(2, name="b")(model.layers[-2].output)
    assert names(keras.Model(model.input, [model.output, other])) == ("a", "b")
    named = keras.Model(model.input, {"head": model.output, "aux": other})
    assert names(named) == ("aux", "head")


def classifiers():
    """Models whose last activation is in their last layer, after it, or in a model inside."""
    images = keras.Input((8, 8, 3))
    dense, softmax = functional(), functional("softmax")
    own = FAMILIES["ViT"](input_shape=(8, 8, 3))
    yield from (softmax, own, keras.Sequential([images, own]), keras.Model(images, own(images)))
    yield keras.Model(images, keras.layers.Softmax()(dense(images)))
    yield keras.Model(images, keras.layers.Activation("linear")(softmax(images)))
    yield keras.Model(images, keras.ops.softmax(dense(images)))
    adapted = keras.layers.Normalization()
    adapted.adapt(np.arange(2 * 8 * 8 * 3, dtype="float32").reshape(2, 8, 8, 3))
    yield keras.Sequential([images, adapted, dense, keras.layers.Activation("softmax")])


@pytest.mark.backend_free
def test_logits_and_probabilities_of_any_classifier():
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    for model in classifiers():
        before = array(model(images))
        logits = with_outputs(model, "softmax", "logits")
        again = with_outputs(logits, "logits", "probabilities")
        assert output_names(logits) == ("logits", ("logits",))
        close(array(keras.ops.softmax(logits(images))), before)
        close(array(again(images)), before)
        close(array(model(images)), before)
    with pytest.raises(ValueError, match="must end in a classifier"):
        with_outputs(FAMILIES["ViT"](include_top=False), None, "logits")


def test_sequential_model(tmp_path):
    network = FAMILIES["ViT"](include_top=False, pooling="token")
    layers = [keras.Input(network.input_shape[1:]), network, keras.layers.Dense(4)]
    model = keras.Sequential([*layers, keras.layers.Softmax()])
    randomize(model)
    exported = exported_to(tmp_path, model, OWN, outputs="logits")
    assert exported.outputs == ("logits",) and exported.difference <= 1e-5


def test_one_sigmoid_output_has_two_classes(tmp_path):
    model = randomized("ViT", classes=1, classifier_activation="sigmoid")
    model.class_names = ("cat", "dog")
    exported = exported_to(tmp_path, model, OWN, preprocessing=model.input_shape[1:3])
    assert exported.classes == ("cat", "dog") and exported.outputs == ("probabilities",)
    photos = np.random.default_rng(0).integers(0, 256, (4, *model.input_shape[1:])).astype("uint8")
    found, expected = (
        [dict(pair[1:] for pair in row) for row in kv.predictor(each, trust=True)(list(photos))]
        for each in (exported.path, model)
    )
    assert len({row["dog"] for row in expected}) > 1
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-5) and sum(row.values()) == pytest.approx(1)


@on_torch
@pytest.mark.parametrize(
    "opset, gelus, ir_version", [(17, 0, 8), (19, 0, 9), (20, 3, 9), (23, 3, 11)]
)
def test_versions_of_onnx(opset, gelus, ir_version, tiny, tmp_path):
    import onnx

    # Averages and equal parts, whose operations differ before 18.
    model = tiny(include_top=False, pooling="avg")
    exported = exported_to(tmp_path, model, "onnx", opset=opset)
    written = onnx.load(exported.path)
    assert [each.version for each in written.opset_import] == [opset]
    # ONNX Runtime 1.16 reads versions up to 9.
    assert written.ir_version == ir_version and exported.difference <= 1e-5
    assert operations_of(exported.path).count("Gelu") == gelus
    (images,) = written.graph.input
    assert images.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.backend_free
@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_an_output_with_the_name_of_the_input(format, tmp_path):
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, {"images": keras.layers.Conv2D(2, 1)(images), "b": images})
    with pytest.raises(ValueError, match="must not have an output named 'images'"):
        exported_to(tmp_path, model, format)


@on_torch
def test_half_precision_leaves_the_model_alone(monkeypatch, tiny, tmp_path):
    """What another thread sees during an export."""
    images, policies = keras.Input((32, 16, 3)), []
    model = keras.Model(images, tiny(depth=1)(images))

    def write(graph, path):
        for each in (model, graph.model):
            policies.append({layer.dtype_policy.name for layer in sublayers(each)})
        path.touch()

    kind = dataclasses.replace(FORMATS["torch"], write=write)
    monkeypatch.setitem(FORMATS, "torch", kind)
    exported_to(tmp_path, model, "torch", compute_dtype="float16", verify=False)
    assert policies == [{"float32"}, {"float32", "mixed_float16"}]


@on_torch
def test_threads_export_one_at_a_time(tiny, tmp_path):
    def export(index):
        directory = tmp_path / str(index)
        return exported_to(directory, tiny(depth=1), "torch", verify=False).path.stat().st_size

    with ThreadPoolExecutor(2) as pool:
        assert min(pool.map(export, range(2))) > 0
