"""Contract tests of the private names of Keras that the package uses; it uses no others."""

import ast

import keras
import pytest
from harness import BACKEND, ROOT
from keras import ops

from keras_vitx import keras_internals
from keras_vitx.layers import MLP, Attention, Block
from keras_vitx.training.devices import replicas

PACKAGE = ROOT / "keras_vitx"


def test_layers_inside_a_layer():
    layer = Block(Attention(2), MLP())
    layer.build((None, 5, 8))
    found = keras_internals.sublayers(layer)
    assert found[0] is layer
    assert {"attn", "qkv", "proj", "norm1", "mlp", "fc1"} <= {part.name for part in found}
    assert len(found) == len({id(part) for part in found})
    names = {part.name for part in keras_internals.children(layer)}
    assert {"attn", "mlp", "norm1", "norm2"} <= names and "qkv" not in names


def test_automatic_names_are_those_before_the_number():
    for cls in (keras.layers.LayerNormalization, MLP):
        assert cls().name.startswith(keras_internals.automatic_name(cls()))


def test_remat_mode_is_set_by_a_scope():
    assert keras_internals.remat_mode(keras.layers.Dense(2)) is None
    with keras.RematScope("full"):
        layer = keras.layers.Dense(2)
    assert keras_internals.remat_mode(layer).mode == "full"


def test_compile_arguments_are_the_objects_that_compile_got():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert keras_internals.compile_arguments(model) == {}
    metric = keras.metrics.MeanAbsoluteError()
    model.compile("sgd", "mse", metrics=[metric], steps_per_execution=2)
    arguments = keras_internals.compile_arguments(model)
    assert arguments["loss"] == "mse"
    assert arguments["metrics"] == [metric]
    assert arguments["steps_per_execution"] == 2
    model.compile(**arguments)


def test_seed_states_are_found_by_name():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])
    assert [v.name for v in model.non_trainable_variables] == [replicas.SEED_STATE]


@pytest.mark.backend_free
def test_private_names_stand_in_one_file():
    """Private attributes that aren't our own."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    nodes = [(path.name, node) for path, tree in trees.items() for node in ast.walk(tree)]
    attributes = [(file, node) for file, node in nodes if isinstance(node, ast.Attribute)]
    # Public in spite of the underscore: of namedtuples, os._exit, and PyTorch's documented ones.
    ours = {"_replace", "_asdict", "_fields", "_exit"}
    ours |= {"_foreach_add_", "_foreach_mul", "_foreach_mul_", "_C"}
    ours |= {n.name for _, n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    ours |= {node.attr for _, node in attributes if isinstance(node.ctx, ast.Store)}
    private = [
        (file, node.attr)
        for file, node in attributes
        if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in ours
    ]
    assert {file for file, _ in private} == {"keras_internals.py"}, private


def test_a_seed_generator_of_a_built_layer_is_replaced():
    layer = keras.layers.Dropout(0.5)
    layer.build((2, 2))
    old = layer.seed_generator.state
    keras_internals.replace_seed_generator(layer, "seed_generator", keras.random.SeedGenerator(3))
    (new,) = layer.non_trainable_variables
    assert new is layer.seed_generator.state
    assert new is not old
    keras_internals.replace_seed_generator(layer, "seed_generator", None)
    assert layer.non_trainable_variables == []


def test_keras_calls_a_layer_for_its_shapes():
    asked = []
    layer = keras.layers.Lambda(lambda x: asked.append(keras_internals.asks_for_shapes()) or x)
    assert layer(keras.KerasTensor((2, 3))).shape == (2, 3)
    layer(ops.ones((2, 3)))
    assert asked[0] and not asked[-1]


@pytest.mark.skipif(BACKEND != "torch", reason="a kernel of PyTorch asks it")
def test_the_tensor_of_a_variable_is_that_of_a_stateless_scope():
    variable = keras.Variable([1.0])
    assert keras_internals.tensor_of(variable) is variable.value
    new = ops.convert_to_tensor([2.0])
    with keras.StatelessScope([(variable, new)]):
        assert keras_internals.tensor_of(variable) is new


@pytest.mark.skipif(BACKEND == "jax", reason="its tensors take no attributes in a step")
def test_a_sigmoid_keeps_its_logits():
    logits = keras.ops.convert_to_tensor([20.0])
    assert keras_internals.logits_of(keras.activations.sigmoid(logits)) is logits
