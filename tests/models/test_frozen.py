"""What is frozen stays frozen, however a model is copied."""

import copy

import keras
import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers

pytestmark = pytest.mark.backend_free


def by_file(model, directory):
    model.save(directory / "model.keras")
    return keras.saving.load_model(directory / "model.keras")


COPIES = {
    "file": by_file,
    "config": lambda model, _: type(model).from_config(model.get_config()),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "at_size": lambda model, _: model.at_size((24, 16)),
    # Keras clones the layers, and makes a new model around them, which knows no family.
    "clone": lambda model, _: kv.as_chain(keras.models.clone_model(model)),
}


def trained(model):
    return [variable.path for variable in model.trainable_variables]


def flags(model):
    parts = [(layer.name, layer.trainable) for layer in model.layers if layer.weights]
    return parts, [(variable.path, variable.trainable) for variable in model.weights]


# A layer at any depth, by its place (0 is the model), and whether it trains.
PARTS, MODEL = (
    [(5, False), (12, False), (-1, False), (15, False), (16, True)],
    [(0, False), (-2, True)],
)


@pytest.mark.parametrize("family", ("CaiT", "RefinedViT"))
@pytest.mark.parametrize("changes", ([*PARTS, *COPIES], [*MODEL, *list(COPIES)[:-1]]))
def test_frozen_in_every_copy(family, changes, tmp_path):
    model = FAMILIES[family](name="mine")
    count = len(trained(model))
    for index, change in enumerate(changes):
        if change in COPIES:
            target = tmp_path / str(index)
            target.mkdir()
            twin = COPIES[change](model, target)
            assert trained(twin) == trained(model)
            assert flags(twin) == flags(model)
            model = twin
        else:
            place, trains = change
            # Keras's clone is a new model around clones of the layers.
            parts = sublayers(model)["clone" in changes :]
            parts[place % len(parts)].trainable = trains
    model.trainable = False
    model.trainable = True
    assert len(trained(model)) == count
