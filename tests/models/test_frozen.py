"""What is frozen stays frozen, however a model is copied."""

import copy

import keras
import pytest
from harness import FAMILIES, blocks

import keras_vitx as kv
from keras_vitx.layers import Attention, HeadMixing


def by_file(model, directory):
    model.save(directory / "model.keras")
    return keras.saving.load_model(directory / "model.keras")


def by_directory(model, directory):
    kv.save(model, directory / "model")
    return kv.load(directory / "model")


COPIES = {
    "file": by_file,
    "directory": by_directory,
    "config": lambda model, _: type(model).from_config(model.get_config()),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "clone": lambda model, _: keras.models.clone_model(model),
    "at_size": lambda model, _: model.at_size((24, 16)),
}


def all_but_the_head(model):
    for layer in model.layers[:-1]:
        layer.trainable = False


def parts_of_blocks(model):
    first, *_, last = blocks(model)
    first.norm1.trainable = False
    first.mlp.fc2.trainable = False
    last.trainable = False
    last.attention.trainable = True
    last.attention.proj.trainable = False


def the_model(model):
    model.trainable = False
    model.layers[-1].trainable = True


FREEZE = (all_but_the_head, parts_of_blocks, the_model)


def trained(model):
    return [variable.path for variable in model.trainable_variables]


@pytest.mark.backend_free
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "Mixer"])
def test_frozen_in_a_copy(family, how, tmp_path):
    ways = FREEZE if family in ("CaiT", "DeepViT") else FREEZE[:1]
    # Keras clones the layers, and makes a new model around them.
    for freeze in ways[:2] if how == "clone" else ways:
        model = FAMILIES[family](name="mine")
        count = len(trained(model))
        freeze(model)
        directory = tmp_path / freeze.__name__
        directory.mkdir()
        twin = COPIES[how](model, directory)
        assert len(trained(model)) < count
        assert trained(twin) == trained(model)
        names = [layer.name for layer in model.layers]
        assert all(model.get_layer(n).trainable == twin.get_layer(n).trainable for n in names)
        model.trainable = twin.trainable = True
        assert len(trained(twin)) == count, "unfrozen again"


@pytest.mark.backend_free
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

    def model():
        attention = lambda index: Attention(2, on_weights=[Around(name="around")])  # noqa: E731
        return FAMILIES["ViT"](attention=attention)

    one = model()
    blocks(one)[1].attention.on_weights[0].mixes[1].trainable = False
    twin = by_file(one, tmp_path)
    assert trained(twin) == trained(one)
    assert len(trained(one)) == len(trained(model())) - 2


@pytest.mark.backend_free
def test_a_layer_made_frozen_is_frozen():
    attention = Attention(2, trainable=False)
    attention.build((None, 5, 8))
    assert attention.trainable_variables == [] and not attention.qkv.kernel.trainable


@pytest.mark.backend_free
def test_the_optimizer_of_a_frozen_model_continues(tmp_path):
    model = FAMILIES["ViT"]()
    all_but_the_head(model)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    twin = by_file(model, tmp_path)
    counts = [len(each.optimizer.variables) for each in (model, twin)]
    assert counts[0] == counts[1] == 2 + len(trained(model))
