"""Folders written by `kv.save`: a config and a weights file."""

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
        The serialized model, and the name of the weights file in the same folder.

    Raises:
        ValueError: if the file is damaged, or was not written by `kv.save`.
        OSError: if it can't be read.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        ours = content.get("library_name") == LIBRARY
        config, weights = (content["model"], content["weights"]) if ours else (None, None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"{CONFIG} is damaged ({type(error).__name__}).") from error
    if not ours:
        raise Refused(
            f"{CONFIG} doesn't describe a model of keras_vitx. If the weights are those of a size, "
            "use keras_vitx.create_model(NAME, weights=...)."
        )
    if weights not in (SAFETENSORS, KERAS_WEIGHTS):
        raise Refused(f"{CONFIG} can't be used: it names the weights {weights!r:.100}.")
    return config, weights
