"""All private names of Keras that the package uses.

Keras may rename them in any release. `tests/test_keras_internals.py` has one contract
test per name, so that an incompatible Keras release fails there first.
"""

from typing import Any

import keras


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return `layer` and all layers inside it, at any depth."""
    return list(layer._flatten_layers())


def children(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers directly inside `layer`."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def remat_mode(layer: keras.layers.Layer) -> Any:
    """Return the rematerialization mode that `keras.RematScope` set on `layer`, or None."""
    return getattr(layer, "_remat_mode", None)


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments given to `model.compile`, as objects; empty if it wasn't called."""
    return dict(model._compile_config.config) if model.compiled else {}


def takes_training(layer: keras.layers.Layer) -> bool:
    """Return whether `layer.call` has an argument `training`."""
    return "training" in layer.call_signature_parameters


def node_of(tensor: keras.KerasTensor) -> Any:
    """Return the node of the operation call that produced a symbolic tensor.

    Its attributes are `operation`, `arguments` (with `args` and `kwargs`), `input_tensors`
    and `outputs`.
    """
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index]


def with_public_optimizers(config: Any) -> Any:
    """Return a serialized config in which Keras's optimizers have their public names.

    Under PyTorch, Keras serializes backend-specific subclasses, which other backends lack.
    """
    if isinstance(config, (list, tuple)):
        return [with_public_optimizers(item) for item in config]
    if not isinstance(config, dict):
        return config
    config = {key: with_public_optimizers(value) for key, value in config.items()}
    if str(config.get("module")).startswith("keras.src.backend.torch.optimizers"):
        config.update(module="keras.optimizers", registered_name=None)
    return config
