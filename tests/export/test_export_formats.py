"""Each format from the backend of this run, opened in its own runtime."""

import json
from functools import partial
from importlib.util import find_spec

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    FAMILIES,
    FAMILIES_HERE,
    ROOT,
    array,
    close,
    numbers,
    precision,
    randomized,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_vitx as kv
from keras_vitx.export import runtimes
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.graph import output_names, with_outputs
from keras_vitx.keras_internals import sublayers
from keras_vitx.losses import SmoothedCrossentropy

WRITTEN_HERE = [
    format.name
    for format in FORMATS.values()
    if format.backend == BACKEND and all(map(find_spec, format.needs))
]
OWN = {"tensorflow": "saved_model", "jax": "stablehlo", "torch": "torch"}[BACKEND]
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow writes it")
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="PyTorch writes it")


def exported_to(directory, model, format, **options):
    path = directory / f"model{FORMATS[format].suffix}"
    return kv.export(model, path, format, verbose=False, **options)


def operations_of(path):
    import onnx

    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.fixture(scope="module")
def trained():
    """A compiled model after training, with optimizer state, all far from initial values."""
    model = FAMILIES["CaiT"](depth=2, layer_scale=1.0, input_shape=(32, 16, 3))
    for seed, weight in enumerate(model.weights):
        weight.assign(weight + numbers(weight.shape, seed, 0.3))
    model.compile("adam", SmoothedCrossentropy(0.1), metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(7)
    return model


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_of_every_format_from_every_backend(format, trained, tmp_path):
    before = [array(v.value) for v in (*trained.variables, *trained.optimizer.variables)]
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

        # Neither casts to a tensor's own dtype nor this machine's paths.
        graph = torch.export.load(path).graph
        assert not any("aten.to" in str(node.target) for node in graph.nodes)
        assert str(ROOT).encode() not in path.read_bytes()
    # The model is as it was. Equal outputs for all images would make the comparison meaningless.
    after = [array(v.value) for v in (*trained.variables, *trained.optimizer.variables)]
    for value, old in zip(after, before, strict=True):
        np.testing.assert_array_equal(value, old)
    assert array(trained(numbers((3, 32, 16, 3)))).std(axis=0).max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES_HERE if BACKEND == "jax" else FAMILIES)
@settings(max_examples=2)
@given(
    # The first example is of the first format: LiteRT or ONNX, which have the fewest operations.
    format=st.sampled_from(sorted(WRITTEN_HERE)),
    size=st.tuples(*[st.sampled_from((16, 24, 32))] * 2),
    classes=st.integers(2, 9),
    batch=st.integers(1, 12),
    outputs=st.sampled_from(("logits", "probabilities")),
)
def test_any_model_of_any_size_takes_any_batch(
    family, tmp_path_factory, format, size, classes, batch, outputs
):
    model = randomized(family, input_shape=(*size, 3), classes=classes)
    images, directory = numbers((batch, *size, 3)), tmp_path_factory.mktemp(format)
    expected = array(with_outputs(model, "softmax", outputs)(images))
    path = exported_to(directory, model, format, outputs=outputs, verify=False).path
    close(runtimes.load(format, path)(images)[outputs], expected, 5e-5)


def functional(activation=None):
    images = keras.Input((8, 8, 3))
    x = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(images, keras.layers.Dense(4, activation=activation, name="a")(x))


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
    served, images = tf.saved_model.load(two.path), numbers((2, 26, 21, 3))
    found = served.signatures["serve_26x21"](images=tf.constant(images))["probabilities"]
    close(array(found), array(model.at_size((26, 21))(images)))


@pytest.mark.backend_free
def test_names_of_outputs():
    dense = functional()
    images, logits = dense.input, dense.output
    for model, names in (
        (dense, ("logits",)),
        (keras.Model(images, dense(images)), ("logits",)),
        (keras.Model(images, keras.ops.softmax(logits)), ("probabilities",)),
        (FAMILIES["ViT"](include_top=False), ("features",)),
        (FAMILIES["RefinedViT"](dense_head=True), ("probabilities",)),
        (keras.Model(images, [logits, dense.layers[-2].output]), ("a", dense.layers[-2].name)),
        (keras.Model(images, {"head": logits, "aux": logits}), ("aux", "head")),
    ):
        assert output_names(model)[1] == names


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
    images = numbers((2, 8, 8, 3))
    for model in classifiers():
        before = array(model(images))
        logits = with_outputs(model, "softmax", "logits")
        again = with_outputs(logits, "logits", "probabilities")
        assert output_names(logits) == ("logits", ("logits",))
        for values in (keras.ops.softmax(logits(images)), again(images), model(images)):
            close(array(values), before)


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
def test_versions_of_onnx(opset, gelus, ir_version, tmp_path):
    import onnx

    # Averages and equal parts, whose operations differ before 18.
    model = randomized("CaiT", depth=2, include_top=False, pooling="avg")
    exported = exported_to(tmp_path, model, "onnx", opset=opset)
    written = onnx.load(exported.path)
    assert [each.version for each in written.opset_import] == [opset]
    # ONNX Runtime 1.16 reads versions up to 9.
    assert written.ir_version == ir_version and exported.difference <= 1e-5
    assert operations_of(exported.path).count("Gelu") == gelus
    (images,) = written.graph.input
    assert images.type.tensor_type.shape.dim[0].dim_param == "batch"


def in_half(make, *steps, **changes):
    with precision("mixed_bfloat16"):
        return make(*steps, **changes)


def decomposed():
    """A model of an operation that ONNX lacks."""
    images = keras.Input((8, 8, 3))
    x = keras.layers.Lambda(lambda x: keras.ops.logaddexp(x, 2.0 * x))(images)
    return keras.Model(images, x)


def wide():
    """A model whose products hold nearly all of its weights: 1.8 MB in float32."""
    return randomized("ViT", dim=192, depth=1, num_heads=3)


def quantized(*steps, **options):
    """A model whose MLP has two groups of weights in int4, of 128 and of 32 rows."""
    model = randomized(options.pop("family", "ViT"), 0.1, **{"dim": 40, "depth": 1, **options})
    for step in steps:
        if step != "lora":
            model.quantize(step)
            continue
        for layer in sublayers(model):
            if isinstance(layer, keras.layers.Dense):
                layer.enable_lora(2)
                layer.lora_kernel_b.assign(numbers(layer.lora_kernel_b.shape, scale=0.05))
    return model


REFINED = {"family": "RefinedViT", "dim": 8, "depth": 3, "dense_head": True}
CASES = [
    # format, model, options, largest difference
    ("onnx", decomposed, {}, 1e-5),
    ("litert", partial(in_half, FAMILIES["CaiT"]), {}, 0.05),
    ("saved_model", partial(in_half, FAMILIES["CaiT"], include_top=False), {}, 0.05),
    ("openvino", partial(in_half, FAMILIES["CaiT"]), {}, 0.05),
    ("torch", partial(randomized, "CaiT"), {"compute_dtype": "bfloat16"}, 0.05),
    ("onnx", partial(randomized, "CaiT"), {"compute_dtype": "float16"}, 0.05),
    *((format, wide, {"precision": "bfloat16"}, 0.05) for format in (OWN, "onnx")),
    ("onnx", partial(quantized, "int8", **REFINED), {}, 2e-5),
    ("onnx", partial(quantized, "int8", "lora"), {}, 2e-5),
    ("onnx", partial(in_half, quantized, "int8"), {}, 0.05),
    ("onnx", partial(quantized, "float8"), {}, 2e-5),
    ("openvino", partial(quantized, "int4", distillation_token=True), {}, 2e-5),
    ("openvino", partial(quantized, "int4", "lora"), {}, 2e-5),
    ("litert", partial(quantized, "lora", "int4"), {}, 2e-5),
    ("litert", partial(in_half, quantized, "int4"), {}, 0.05),
    ("saved_model", partial(quantized, "int8", "lora"), {}, 2e-5),
    ("torch", partial(quantized, "int4"), {}, 2e-5),
    ("stablehlo", partial(quantized, "int8", distillation_token=True), {}, 2e-5),
]


@pytest.mark.parametrize(
    "format, make, options, largest", [row for row in CASES if row[0] in WRITTEN_HERE]
)
def test_precisions_and_other_models(format, make, options, largest, tmp_path):
    model = make()
    before = [layer.dtype_policy.name for layer in sublayers(model)]
    exported = exported_to(tmp_path, model, format, **options)
    assert 0 <= exported.difference < largest
    assert [layer.dtype_policy.name for layer in sublayers(model)] == before
    if "precision" in options:
        # A graph is in the file as well.
        assert exported.size < 0.75 * 4 * model.count_params() and exported.top1 is not None
    if options == {"compute_dtype": "float16"}:
        import onnx

        graph = onnx.load(exported.path).graph
        half = {x.name for x in graph.initializer if x.data_type == onnx.TensorProto.FLOAT16}
        products = [set(node.input) for node in graph.node if node.op_type == "MatMul"]
        assert len([inputs for inputs in products if inputs & half]) > len(products) / 3


@pytest.mark.backend_free
def test_lora_reaches_another_backend_unrounded(tmp_path):
    # A `.keras` file would hold it merged and rounded to int4: 0.1 of the largest output.
    assert exported_to(tmp_path, quantized("int4", "lora"), "stablehlo").difference < 2e-5
