"""Preprocessing by the name of a model, and predictions by class names."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from harness import FAMILIES, picture

import keras_vitx as kv
from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.models import MODELS, model_input
from keras_vitx.training.evaluate import order_of
from keras_vitx.weights import checkpoints_of

pytestmark = pytest.mark.backend_free


def test_every_size_and_family_states_what_it_takes():
    for name, family in FAMILIES.items():
        assert getattr(kv, name).preprocessing == family().preprocessing
    for name, size in MODELS.items():
        facts = model_input(name)
        assert facts.input_shape == (None, *size.data["input_shape"])
        assert facts.preprocessing == size.preprocessing


def test_images_are_made_ready_by_a_name():
    image = picture(50, 60)
    by_size = kv.preprocess_input(image, "CaiT_Mini")
    np.testing.assert_array_equal(by_size, kv.preprocess_input(image, kv.CaiT_Mini()))
    np.testing.assert_array_equal(by_size, kv.preprocess_input(image, "cait_mini_cifar10"))
    for checkpoint in checkpoints_of(None):
        side = checkpoint.image_size
        batch = kv.preprocess_input(image, checkpoint.name)
        assert batch.shape == (1, side, side, 3)


def test_the_classes_of_imagenet_are_timms(timm):
    classes = imagenet_classes()
    assert len(classes) == 1000 and classes[0] == ("n01440764", "tench")
    info = timm.data.ImageNetInfo("imagenet-1k")
    for index, (synset, name) in enumerate(classes):
        assert synset == info.index_to_label_name(index)
        assert name == info.label_name_to_description(synset, detailed=False).split(",")[0]


def test_the_most_probable_come_first():
    predictions = np.zeros((2, 1000), "float32")
    predictions[0, [134, 517]] = 0.25, 0.75
    predictions[1, 7] = 1
    for given in (predictions, keras.ops.convert_to_tensor(predictions)):
        first, second = kv.decode_predictions(given, top=2)
        assert first == [("n03126707", "crane", 0.75), ("n02012849", "crane", 0.25)]
        assert second[0] == ("n01514668", "cock", 1.0) and len(second) == 2
    assert len(kv.decode_predictions(predictions)[0]) == 5


def test_a_models_own_names_go_first():
    model = SimpleNamespace(class_names=("cat", "dog"))
    for predictions in ([[0.25, 0.75]], [[0.75]]):
        found = kv.decode_predictions(np.float32(predictions), model=model)
        assert found == [[("1", "dog", 0.75), ("0", "cat", 0.25)]]
    model.class_names = None
    assert kv.decode_predictions(np.eye(1000), 1, model)[0][0][:2] == ("n01440764", "tench")


NUMBERS = [str(i) for i in range(12)]


@pytest.mark.parametrize(
    ("outputs", "labels", "order"),
    [  # (names of the model or their number, names of the data, outputs of these or the error)
        (12, None, None),
        (12, NUMBERS, None),
        (12, ["3", "5", "7"], [3, 5, 7]),
        (12, ["03", "5", "11"], [3, 5, 11]),
        (3, ["3", "5", "7"], None),
        (sorted(NUMBERS), NUMBERS, [sorted(NUMBERS).index(name) for name in NUMBERS]),
        (NUMBERS, ["03", "11"], [3, 11]),
        (["4", "7", "5"], ["05", "7"], [2, 1]),
        (["a", "b", "c"], ["0", "1"], None),
        (["a", "b", "c"], ["2"], [2]),
        (["a", "b", "c"], ["2", "3"], "Received: '3'"),
        (12, [str(i) for i in range(1, 13)], "must have only classes .*no `class_names`"),
        (12, ["cat", "dog"], "Received: 'cat, dog'"),
        (["a", "b", "a"], ["a", "b"], "must be different names"),  # mlfoundations/open_clip#917
        (NUMBERS, ["1.0", "+2", "1e1"], [1, 2, 10]),
    ],
)
def test_labels_and_outputs_match_by_name_or_number(outputs, labels, order):
    count = outputs if isinstance(outputs, int) else len(outputs)
    names = None if isinstance(outputs, int) else tuple(outputs)
    if isinstance(order, str):
        with pytest.raises(ValueError, match=order):
            order_of(labels, names, count)
        return
    found = order_of(labels, names, count)
    assert (found if order is None else found[: len(order)]) == order
    assert found is None or sorted(found) == list(range(count))
