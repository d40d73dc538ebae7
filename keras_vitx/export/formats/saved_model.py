"""TensorFlow SavedModels, which the formats converted from them start from."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import keras

from keras_vitx.export.formats import encoded
from keras_vitx.export.formats.base import INPUT, Format, Graph, halves

PARTS = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "export.json"}
"""Contents of the folder."""


def write(graph: Graph, folder: Path) -> None:
    """Write the endpoint `serve`, and the signatures `serve` and `serving_default`.

    With `graph.classes`, `serving_default` is that of `encoded.signature`.

    Not by `model.export`: it names no outputs, stores each weight twice, and knows one image
    size and one precision.
    """
    import tensorflow as tf

    module = tf.Module()
    stored, signatures = {}, {}
    for name, model in {"serve": graph.model, **graph.others}.items():
        weights = _store(tf, model, graph.precision, stored)
        spec = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, name=INPUT)
        endpoint = _endpoint(tf, model, weights, spec)
        setattr(module, name, endpoint)
        signatures[name] = _signature(tf, endpoint, graph, spec)
    default = signatures["serve"]
    if graph.classes:
        *_, before, network = graph.model.layers
        weights = _store(tf, network, graph.precision, stored)
        predict = _stateless(tf, network, weights)
        default = encoded.signature(before, predict, graph.classes, graph.top)
    module.stored = list(stored.values())
    signatures = {"serving_default": default, **signatures}
    tf.saved_model.save(module, str(folder), signatures=signatures)


def _store(tf, model, precision, stored):
    """Return (variable, stored variable) pairs; models share those of equal values."""
    in_half = halves(model, precision)
    pairs = []
    for variable in model.variables:
        array = in_half.get(id(variable))
        if array is None:
            array = keras.ops.convert_to_numpy(variable)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in stored:
            stored[key] = tf.Variable(array, trainable=False)
        pairs.append((variable, stored[key]))
    return pairs


def _endpoint(tf, model, weights, spec):
    predict = _stateless(tf, model, weights)
    return tf.function(predict, input_signature=[spec], autograph=False)


def _stateless(tf, model, weights):
    def predict(images):
        values = [(variable, tf.cast(value, variable.dtype)) for variable, value in weights]
        with keras.StatelessScope(values):
            return model(images, training=False)

    return predict


def _signature(tf, endpoint, graph, spec):
    def signature(images):
        return graph.named(endpoint(images))

    return tf.function(signature, input_signature=[spec], autograph=False)


@contextlib.contextmanager
def temporary(graph: Graph) -> Iterator[Path]:
    """Yield the folder of a temporary SavedModel, from which other formats are converted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "saved_model")
        write(graph, path)
        yield path


def is_one(path: Path) -> bool:
    """Return whether a path is the folder of a SavedModel and holds nothing else."""
    names = {part.name for part in path.iterdir()} if path.is_dir() else set()
    return "saved_model.pb" in names and names <= PARTS


FORMAT = Format(
    name="saved_model",
    title="A SavedModel",
    suffix="",
    backend="tensorflow",
    needs=("tensorflow",),
    extra="export",
    write=write,
    is_one=is_one,
    any_size=True,
)
