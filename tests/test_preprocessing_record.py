"""The preprocessing record, and how it is read."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.preprocessing import IMAGENET_INCEPTION, ModelInput, Preprocessing

pytestmark = pytest.mark.backend_free


def test_it_comes_back_from_json():
    record = Preprocessing(np.float32([0.5, 0.25]), [1, 2], 1.13, "bilinear")
    assert record.mean == (0.5, 0.25) and record.std == (1.0, 2.0)
    assert Preprocessing.of(json.loads(json.dumps(record.to_dict()))) == record
    assert Preprocessing.of(record) is record
    assert Preprocessing.of({"mean": [0.5], "std": [1]}) == Preprocessing((0.5,), (1.0,))


def test_changes():
    changed = IMAGENET_INCEPTION.but(crop_ratio=0.9, std=(1, 1, 1))
    assert changed == Preprocessing((0.5,) * 3, (1.0,) * 3, 0.9)
    assert IMAGENET_INCEPTION.crop_ratio == 1.0
    with pytest.raises(ValueError, match=r"no entry 'crop'.*'crop_ratio'"):
        IMAGENET_INCEPTION.but(crop=0.9)
    with pytest.raises(AttributeError):
        IMAGENET_INCEPTION.crop_ratio = 0.9


def test_other_channels_share_the_mean():
    record = Preprocessing((0.25, 0.5, 0.75), (1, 2, 3), 0.9)
    assert record.for_channels(3) is record
    assert record.for_channels(1) == Preprocessing((0.5,), (2.0,), 0.9)
    assert record.for_channels(4) == Preprocessing((0.5,) * 4, (2.0,) * 4, 0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": 0.5}, "`mean` must be one finite number per channel. Received: 0.5"),
        ({"mean": ("a",)}, "`mean` must be"),
        ({"std": ()}, "`std` must be one finite number"),
        ({"std": (float("nan"),) * 3}, "`std` must be one finite number"),
        ({"std": (1, 1)}, "one value per channel"),
        ({"std": (1, 0, 1)}, "`std` must be positive"),
        ({"crop_ratio": 0}, "`crop_ratio` must be above 0. Received: 0"),
        ({"crop_ratio": float("nan")}, "`crop_ratio`"),
        ({"crop_ratio": "0.9"}, "`crop_ratio`"),
        ({"interpolation": "bicubik"}, "Did you mean 'bicubic'"),
    ],
)
def test_values_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        IMAGENET_INCEPTION.but(**changes)


@pytest.mark.parametrize("value", [None, 0.5, {"mean": [0.5]}, {"std": [0.5]}])
def test_what_is_no_preprocessing(value):
    with pytest.raises(ValueError, match=r"dictionary with `mean` and `std`\. Received"):
        Preprocessing.of(value)


def test_a_model_holds_the_record():
    model = FAMILIES["ViT"](input_shape=(16, 8, 1))
    assert model.preprocessing == kv.ViT.preprocessing.for_channels(1)
    assert ModelInput.of(model).size == (16, 8)
    assert ModelInput.of(ModelInput.of(model)) == ModelInput.of(model)
    model.preprocessing = {"mean": [0.5], "std": [0.25]}
    assert model.preprocessing == Preprocessing((0.5,), (0.25,))
    with pytest.raises(ValueError, match="dictionary with `mean` and `std`"):
        model.preprocessing = {"mean": [0.5]}
    assert model.preprocessing == Preprocessing((0.5,), (0.25,)), "stays as it was"


def test_a_saved_model_has_it_as_a_dictionary(tmp_path):
    model = FAMILIES["ViT"]()
    model.preprocessing = IMAGENET_INCEPTION.but(interpolation="bilinear")
    # Files from before the record existed have the same dictionary.
    assert model.get_config()["preprocessing"] == {
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "crop_ratio": 1.0,
        "interpolation": "bilinear",
    }
    model.save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras").preprocessing == model.preprocessing
    config = model.get_config()
    for mean in ((0.5,) * 3, np.float32([0.5] * 3)):
        # Tuples and arrays as Keras serializes them.
        written = json.dumps(keras.saving.serialize_keras_object({"mean": mean, "std": mean}))
        older = config | {"preprocessing": json.loads(written)}
        assert kv.models.Chain.from_config(older).preprocessing == IMAGENET_INCEPTION


def test_a_model_from_elsewhere():
    model = SimpleNamespace(input_shape=(None, 8, 8, 3))
    with pytest.raises(ValueError, match="has no `preprocessing`"):
        ModelInput.of(model)
    model.preprocessing = IMAGENET_INCEPTION.to_dict()
    assert ModelInput.of(model).preprocessing == IMAGENET_INCEPTION
    model.preprocessing = {"mean": [0.5], "std": [0.5]}
    with pytest.raises(ValueError, match="each of 3 channels"):
        ModelInput.of(model)
