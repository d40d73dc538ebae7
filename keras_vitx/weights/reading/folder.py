"""Folders that `kv.save` writes: a config and a file of weights."""

import json
from pathlib import Path
from typing import Any

from keras_vitx.weights.description import LIBRARY
from keras_vitx.weights.reading.tensors import Refused

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
# Keras's own format, for variables that have no name in PyTorch checkpoints.
KERAS_WEIGHTS = "model.weights.h5"


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Read the `config.json` of a saved model.

    Args:
        path: The file.

    Returns:
        The serialized model, and the name of the file of weights beside it.

    Raises:
        ValueError: when the file is damaged, or was not written by `kv.save`.
        OSError: when it can't be read.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        ours = content.get("library_name") == LIBRARY
        config, weights = (content["model"], content["weights"]) if ours else (None, None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"{CONFIG} is damaged ({type(error).__name__}).") from error
    if not ours:
        raise Refused(
            f"{CONFIG} isn't that of a model of keras_vitx. If the weights are those of a size, "
            "make it: keras_vitx.create_model(NAME, weights=...)."
        )
    if weights not in (SAFETENSORS, KERAS_WEIGHTS):
        raise Refused(f"{CONFIG} can't be used: it names the weights {weights!r:.100}.")
    return config, weights
