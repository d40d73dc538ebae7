"""Exports: faults that were reported of other projects, in the order of the tests.

source                              what was said                  right value, and from where
onnx/tensorflow-onnx#2319           a Sequential has no names of   `logits`, and the outputs of the
                                    outputs: no ONNX file          model itself
keras-team/keras#2775,              an average of models inside    the softmax of the mean of their
onnx/keras-onnx#570                 one is not converted           logits
Unity-Technologies/ml-agents#4659,  two exports at a time raise:   both files, and the outputs of
ultralytics/ultralytics#24092       the exporter has one state     their models
openvinotoolkit/openvino#9561,      a / b is a * (1 / b), and      the outputs of `predict` for
microsoft/onnxruntime#11384         float16 ends at 65504          photographs of any side
"""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, picture, randomize, randomized

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


def test_a_sequential_model_around_a_network(tmp_path):
    network = FAMILIES["ViT"](include_top=False, pooling="token")
    layers = [keras.Input(network.input_shape[1:]), network, keras.layers.Dense(4)]
    model = keras.Sequential([*layers, keras.layers.Softmax()])
    randomize(model)
    exported = kv.export(model, tmp_path / "m.onnx", outputs="logits")
    assert exported.outputs == ("logits",) and exported.difference <= 1e-5


def test_the_average_of_networks(tmp_path):
    networks = [
        randomized("ViT", depth=depth, name=f"vit_{depth}", classifier_activation=None)
        for depth in (1, 2)
    ]
    images = networks[0].input
    model = keras.Model(images, keras.layers.Average()([each(images) for each in networks]))
    model.preprocessing = networks[0].preprocessing
    picture = np.random.default_rng(0).integers(0, 256, model.input_shape[1:]).astype("uint8")
    logits = model.predict(kv.preprocess_input([picture], model), verbose=0)
    expected = array(keras.ops.softmax(logits))
    ((*_, found),) = kv.predictor(model)(picture, top=1)[0]
    assert found == pytest.approx(expected.max(), rel=1e-4)
    exported = kv.export(model, tmp_path / "model.pt2")
    assert exported.outputs == ("logits",) and exported.difference <= 1e-5


def test_threads_export_one_at_a_time(tmp_path):
    def export(index, suffix):
        model = FAMILIES["CaiT"](depth=1)
        return kv.export(model, tmp_path / f"{index}{suffix}").difference

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(export, range(2), (".onnx", ".pt2"))) <= 1e-5


def test_pixels_in_runtimes_with_other_divisions_and_in_float16(tmp_path):
    openvino = pytest.importorskip("openvino")
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model, path = kv.ViT_Mini(weights="cifar10"), str(tmp_path / "m.onnx")
    kv.export(model, path, preprocessing=True)
    exact = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    half = onnxruntime.InferenceSession(half.SerializeToString())
    for height, width in ((41, 41), (47, 60), (122, 83), (218, 300), (440, 441)):
        image = picture(height, width)
        expected = model.predict(kv.preprocess_input([image], model), verbose=0)
        # OpenVINO has no float64: a pixel at a half may be a level off.
        np.testing.assert_allclose(exact(image[None])[0], expected, atol=1e-3)
        (found,) = half.run(None, {"images": image[None]})
        np.testing.assert_allclose(found, expected, atol=2e-2)
