"""Faults of exports and servers that other projects reported."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, randomize, randomized

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


# onnx/tensorflow-onnx#2319
def test_a_sequential_model_around_a_network(tmp_path):
    network = FAMILIES["ViT"](include_top=False, pooling="token")
    layers = [keras.Input(network.input_shape[1:]), network, keras.layers.Dense(4)]
    model = keras.Sequential([*layers, keras.layers.Softmax()])
    randomize(model)
    for path in (tmp_path / "m.onnx", tmp_path / "saved_model"):
        exported = kv.export(model, path, outputs="logits", verbose=False)
        assert exported.outputs == ("logits",) and exported.difference <= 1e-5


# keras-team/keras#2775, onnx/keras-onnx#570
@pytest.mark.parametrize("activation", ["softmax", None])
def test_the_average_of_networks(activation, tmp_path):
    options = {"classifier_activation": activation}
    networks = [randomized("ViT", depth=depth, name=f"vit_{depth}", **options) for depth in (1, 2)]
    images = networks[0].input
    model = keras.Model(images, keras.layers.Average()([each(images) for each in networks]))
    picture = np.random.default_rng(0).integers(0, 256, model.input_shape[1:]).astype("uint8")
    expected = model.predict(kv.preprocess_input([picture], model), verbose=0)
    expected = expected if activation else array(keras.ops.softmax(expected))
    ((*_, found),) = kv.predictor(model)(picture, top=1)[0]
    assert found == pytest.approx(expected.max(), rel=1e-4)
    outputs = "probabilities" if activation else "logits"
    exported = kv.export(model, tmp_path / "model", verbose=False)
    assert exported.outputs == (outputs,) and exported.difference <= 1e-5
    other = "logits" if activation else "probabilities"
    with pytest.raises(ValueError, match="`outputs` must be None for"):
        kv.export(model, tmp_path / "other", outputs=other, verbose=False)


# Unity-Technologies/ml-agents#4659, ultralytics/ultralytics#24092
def test_threads_export_one_at_a_time(tmp_path):
    def export(index):
        model = FAMILIES["CaiT"](depth=1)
        return kv.export(model, tmp_path / f"{index}.onnx", verify=False, verbose=False).size

    with ThreadPoolExecutor(2) as pool:
        assert min(pool.map(export, range(2))) > 0


# pytorch/pytorch#195099
def test_threads_open_files_at_the_same_time(tmp_path):
    model = FAMILIES["CaiT"]()
    options = {"preprocessing": True, "verify": False, "verbose": False}
    path = kv.export(model, tmp_path / "m.pt2", **options).path
    with ThreadPoolExecutor(4) as pool:
        opened = pool.map(lambda _: kv.predictor(path, trust=True), range(4))
        assert {len(each.class_names) for each in opened} == {5}


# onnx/onnx#3991
@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("location", ["secret.txt", "../secret.txt", "/etc/passwd"])
def test_an_onnx_file_that_reads_others_is_not_opened(place, location, classifier, tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx.helper import make_graph, make_model, make_node, make_tensor, make_tensor_value_info

    tensor = make_tensor("weights", onnx.TensorProto.UINT8, [4], bytes(4), raw=True)
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    (images, output) = (make_tensor_value_info(name, 2, [4]) for name in ("images", "y"))
    nodes = [make_node("Constant", [], ["y"], value=tensor)]
    if place == "branch":
        inner = make_graph(nodes, "inner", [], [output])
        nodes = [make_node("If", ["images"], ["y"], then_branch=inner, else_branch=inner)]
    elif place == "initializer":
        nodes = [make_node("Identity", ["weights"], ["y"])]
    weights = [tensor] if place == "initializer" else []
    path = tmp_path / "model.onnx"
    onnx.save(make_model(make_graph(nodes, "graph", [images], [output], weights)), path)
    for open_file in (kv.predictor, lambda path: kv.export.verify(path, classifier)):
        with pytest.raises(ValueError, match=f"must hold its weights itself.*'{location}'"):
            open_file(path)


# pytorch/pytorch#133653
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_an_older_keras_is_named(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.13.2")
    with pytest.raises(ImportError, match=r"need Keras 3.14 or later. Received: Keras 3.13.2"):
        kv.export(FAMILIES["ViT"](), tmp_path / f"model{suffix}", verbose=False)
    assert not list(tmp_path.iterdir())
