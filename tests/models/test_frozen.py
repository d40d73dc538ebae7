"""What is frozen stays frozen, however a model is copied."""

import copy

import keras
import pytest
from harness import FAMILIES, blocks

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import Attention, HeadMixing

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


def test_frozen_layers_of_ones_own(tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Around(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.mixes = [HeadMixing(name="mix"), HeadMixing(name="mix")]

        def build(self, shape):
            for mix in self.mixes:
                mix.build(shape)

        def call(self, maps):
            return self.mixes[1](self.mixes[0](maps))

    model = FAMILIES["ViT"](attention=lambda _: Attention(2, on_weights=[Around(name="around")]))
    count = len(trained(model))
    blocks(model)[1].attention.on_weights[0].mixes[1].trainable = False
    assert trained(by_file(model, tmp_path)) == trained(model)
    assert len(trained(model)) == count - 2


def test_the_optimizer_of_a_frozen_model_continues(tmp_path):
    model = FAMILIES["ViT"]()
    for layer in model.layers[:-1]:
        layer.trainable = False
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    for each in (model, by_file(model, tmp_path)):
        assert len(each.optimizer.variables) == 2 + len(trained(model))
