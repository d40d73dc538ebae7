"""Options of the signature for a server."""

from typing import Any

import keras

from keras_vitx.data.predictions import class_names
from keras_vitx.export.formats.base import Format
from keras_vitx.export.options.prepare import KINDS, Prepared


def check_serving(serving: Any, format: Format, outputs: str | None) -> None:
    """Check that `serving` is True or a positive integer, and fits the other arguments.

    Raises:
        ValueError: if it is not, or does not.
    """
    if serving is not True and not (isinstance(serving, int) and serving > 0):
        raise ValueError(
            f"serving should be True, False, or the number of classes to return, not {serving!r}."
        )
    if format.name != "saved_model":
        raise ValueError(f"serving needs format='saved_model', not {format.name!r}.")
    if outputs not in (None, "probabilities"):
        raise ValueError(f"serving returns probabilities; outputs={outputs!r} contradicts that.")


def classes_of(model: keras.Model, parts: Prepared) -> tuple[str, ...]:
    """Return the names of a classifier's classes, and none for another model."""
    if len(parts.outputs) != 1 or parts.outputs[0] not in KINDS:
        return ()
    return class_names(model, parts.network.output_shape[-1])


def top_of(serving: bool | int, classes: tuple[str, ...]) -> int:
    """Return the number of classes that the server returns."""
    return len(classes) if serving is True else min(serving, len(classes))
