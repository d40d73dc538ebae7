"""Each format from the backend of this run, opened in its own runtime."""

import json
from functools import partial
from importlib.util import find_spec
from itertools import cycle

import keras
import numpy as np
import pytest
from devices.zoo import SHALLOW
from harness import (
    BACKEND,
    FAMILIES,
    ROOT,
    SIMPLE,
    array,
    close,
    numbers,
    precision,
    randomize,
    randomized,
)

import keras_vitx as kv
from keras_vitx.export import FORMATS, runtimes
from keras_vitx.export.graph import NAMES, kind_of, output_names, with_output
from keras_vitx.keras_internals import sublayers
from keras_vitx.losses import SmoothedCrossentropy

# CaiT is written by itself.
OWN_OPERATIONS = [name for name in FAMILIES if name not in (*SIMPLE, "CaiT")]
WRITTEN_HERE = [
    format.name
    for format in FORMATS.values()
    if format.backend == BACKEND and all(map(find_spec, format.packages))
]
# JAX writes none: a second process does, as for any backend that is not the format's.
FORMATS_HERE = ("onnx",) if BACKEND == "jax" else WRITTEN_HERE


def exported_to(directory, model, format, **options):
    return kv.export(model, directory / f"model{FORMATS[format].suffix}", format, **options)


def outputs_of(exported, images):
    """Return the outputs of a file by name, in this process."""
    return getattr(runtimes, exported.format)(str(exported.path))(images)


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


@pytest.mark.parametrize("format", FORMATS_HERE)
def test_a_file_of_every_format(format, trained, tmp_path):
    before = [array(v.value) for v in (*trained.variables, *trained.optimizer.variables)]
    exported = exported_to(tmp_path, trained, format)
    # Outputs were compared for one image and for eight, in a process without Keras.
    assert exported.difference <= 1e-5
    assert (exported.shape, exported.dtype) == ((None, 32, 16, 3), "float32")
    assert exported.outputs == ("probabilities",) and len(exported.classes) == 5
    assert [each.name for each in tmp_path.iterdir()] == [exported.path.name]
    if format == "onnx":
        import onnx

        proto = onnx.load(exported.path)
        (names,) = (one.value for one in proto.metadata_props if one.key == "class_names")
        # Two per block, one at the end; none of their parts is left.
        operations = [node.op_type for node in proto.graph.node]
        assert operations.count("LayerNormalization") == 7 and operations.count("Gelu") == 3
        assert not {"ReduceMean", "Einsum", "Cast"} & set(operations)
    if format == "saved_model":
        names = (exported.path / "assets.extra" / "class_names.json").read_text()
    if format != "torch":
        assert tuple(json.loads(names)) == exported.classes
    if format == BACKEND == "torch":
        import torch

        # Neither casts to a tensor's own dtype nor this machine's paths.
        graph = torch.export.load(exported.path).graph
        assert not any("aten.to" in str(node.target) for node in graph.nodes)
        assert str(ROOT).encode() not in exported.path.read_bytes()
    # The model is as it was. Equal outputs for all images would make the comparison meaningless.
    after = [array(v.value) for v in (*trained.variables, *trained.optimizer.variables)]
    np.testing.assert_equal(after, before)
    assert array(trained(numbers((3, 32, 16, 3)))).std(axis=0).max() > 1e-3


@pytest.mark.parametrize("index, format", enumerate(WRITTEN_HERE))
def test_any_family_takes_any_batch(index, format, tmp_path):
    """Several in one file, which takes seconds to write and to run."""
    inputs, images = keras.Input((24, 16, 3)), numbers((5, 24, 16, 3))
    names = OWN_OPERATIONS[index :: len(WRITTEN_HERE)]
    shallow = {name: SHALLOW.get(name, {}) for name in names}
    models = {n: randomized(n, input_shape=(24, 16, 3), **shallow[n]) for n in names}
    whole = keras.Model(inputs, {name: each(inputs) for name, each in models.items()})
    found = outputs_of(exported_to(tmp_path, whole, format), images)
    for name, each in models.items():
        close(found[name], array(each(images)), 5e-5, name)


@pytest.mark.parametrize("format", WRITTEN_HERE)
def test_pixels_are_cropped_as_by_preprocess_input(format, tmp_path):
    model, size = randomized("ViT", depth=1, input_shape=(24, 16, 3)), (24, 16)
    model.preprocessing = model.preprocessing.replace(crop_ratio=0.9)
    exported = exported_to(tmp_path, model, format, preprocessing=True)
    # Rounded to the nearest, 18 or 27 pixels would be resized before the crop.
    sides = (41, 57) if FORMATS[format].any_size else tuple(int(side / 0.9) for side in size)
    assert exported.dtype == "uint8" and exported.shape[1:3] in (sides, (None, None))
    pixels = np.random.default_rng(0).integers(0, 256, (3, *sides, 3)).astype("uint8")
    expected = array(model(kv.preprocess_input(list(pixels), model)))
    close(outputs_of(exported, pixels)["probabilities"], expected, 5e-5)


def in_float32(model):
    """Change a file as OpenVINO does: no float64, division as a product with the reciprocal."""
    from onnx import TensorProto, helper, numpy_helper

    del model.graph.value_info[:]
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            single = numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(numpy_helper.from_array(single, tensor.name))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.DOUBLE:
            node.attribute[0].i = TensorProto.FLOAT
        if node.op_type == "Div":
            reciprocal = f"{node.output[0]}_reciprocal"
            model.graph.node.append(helper.make_node("Reciprocal", node.input[1:], [reciprocal]))
            node = helper.make_node("Mul", [node.input[0], reciprocal], node.output)
        model.graph.node.append(node)
    return model


@pytest.mark.skipif(BACKEND != "torch", reason="writes ONNX")
@pytest.mark.parametrize("size, crop_ratio", [((32, 32), 1.0), ((32, 24), 0.9)])
def test_pixels_in_less_precision(size, crop_ratio, tmp_path):
    """openvinotoolkit/openvino#9561 is the reciprocal; float16 has no 2051, and 65504 at most."""
    import onnx
    import onnxruntime
    from onnxruntime.transformers.float16 import convert_float_to_float16

    images = keras.Input((*size, 3))
    model = keras.Model(images, keras.layers.Rescaling(1 / 255)(images))
    model.preprocessing = kv.Preprocessing.pixels(
        3, crop_ratio=crop_ratio, interpolation="bilinear"
    )
    path = kv.export(model, tmp_path / "model.onnx", preprocessing=True).path
    half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    files = {0: onnx.load(path), 1: in_float32(onnx.load(path)), 2: half}
    for levels, file in files.items():
        session = onnxruntime.InferenceSession(file.SerializeToString())
        for sides in ((41, 47), (60, 41), (83, 122), (2051, 2049)):
            pixels = np.random.default_rng(0).integers(0, 256, (*sides, 3)).astype("uint8")
            (found,) = session.run(None, {"images": pixels[None]})
            difference = np.abs(255 * found - kv.preprocess_input([pixels], model))
            assert difference.max() < levels + 0.2 and difference.mean() < 0.2, (levels, sides)


def functional(activation=None):
    images = keras.Input((8, 8, 3))
    x = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(images, keras.layers.Dense(4, activation=activation, name="a")(x))


@pytest.mark.backend_free
def test_names_of_outputs():
    dense = functional()
    images, logits = dense.input, dense.output
    for model, names in (
        (dense, ("logits",)),
        (keras.Model(images, dense(images)), ("logits",)),
        (FAMILIES["ViT"](include_top=False), ("features",)),
        (FAMILIES["RefinedViT"](dense_head=True), ("probabilities",)),
        (keras.Model(images, [logits, dense.layers[-2].output]), ("a", dense.layers[-2].name)),
        (keras.Model(images, {"head": logits, "aux": logits}), ("aux", "head")),
    ):
        assert output_names(model, NAMES[kind_of(model)]) == names


def classifiers():
    """Models whose last activation is in their last layer, after it, or in a model inside."""
    images = keras.Input((8, 8, 3))
    dense, softmax = functional(), functional("softmax")
    own = FAMILIES["ViT"](input_shape=(8, 8, 3))
    yield from (softmax, own, keras.Sequential([images, own]), keras.Model(images, own(images)))
    yield FAMILIES["RefinedViT"](input_shape=(8, 8, 3), dense_head=True)
    yield FAMILIES["ViT"](input_shape=(8, 8, 3), distillation_token=True)
    yield keras.Model(images, keras.layers.Softmax()(dense(images)))
    adapted = keras.layers.Normalization()
    adapted.adapt(np.arange(2 * 8 * 8 * 3, dtype="float32").reshape(2, 8, 8, 3))
    yield keras.Sequential([images, adapted, dense, keras.layers.Activation("softmax")])


@pytest.mark.backend_free
def test_logits_and_probabilities_of_any_classifier():
    images = numbers((2, 8, 8, 3))
    for model in classifiers():
        before = array(model(images))
        logits = with_output(model, "logits", "probabilities")
        again = with_output(logits, "probabilities", "logits")
        assert (kind_of(model), kind_of(logits), kind_of(again)) == ("softmax", "logits", "softmax")
        for values in (keras.ops.softmax(logits(images)), again(images), model(images)):
            close(array(values), before)


def in_half(make, *steps, **changes):
    with precision("mixed_bfloat16"):
        return make(*steps, **changes)


def decomposed():
    """A model of an operation that ONNX lacks."""
    images = keras.Input((8, 8, 3))
    x = keras.layers.Lambda(lambda x: keras.ops.logaddexp(x, 2.0 * x))(images)
    return keras.Model(images, x)


def pyramid():
    """Maps of features of several sizes, as a dictionary."""
    model = kv.features(FAMILIES["ViT"](depth=4, input_shape=(32, 32, 3)), range(4))
    randomize(model)
    return model


def quantized(*modes):
    """A model of layers in these modes in turn; in int4, its MLP has groups of 128 and 32 rows."""
    model = randomized("ViT", 0.1, dim=40, depth=1)
    layers = (layer for layer in sublayers(model) if isinstance(layer, keras.layers.Dense))
    for layer, mode in zip(layers, cycle(modes), strict=False):
        layer.quantize(mode)
        if mode == "int8":
            layer.enable_lora(2)
            layer.lora_kernel_b.assign(numbers(layer.lora_kernel_b.shape, scale=0.05))
    return model


CASES = [
    # format, model, largest difference
    ("onnx", decomposed, 1e-5),
    ("torch", pyramid, 1e-5),
    ("saved_model", partial(in_half, FAMILIES["CaiT"], depth=1, include_top=False), 0.05),
    ("torch", partial(in_half, FAMILIES["CaiT"], depth=1), 0.05),
    ("onnx", partial(in_half, FAMILIES["CaiT"], depth=1), 0.05),
    ("onnx", partial(quantized, "int8", "float8"), 2e-5),
    ("saved_model", partial(quantized, "int8"), 2e-5),
    ("torch", partial(quantized, "int4"), 2e-5),
]


@pytest.mark.parametrize("format, make, largest", [row for row in CASES if row[0] in WRITTEN_HERE])
def test_precisions_and_other_models(format, make, largest, tmp_path):
    model = make()
    before = [layer.dtype_policy.name for layer in sublayers(model)]
    assert 0 <= exported_to(tmp_path, model, format).difference < largest
    assert [layer.dtype_policy.name for layer in sublayers(model)] == before
