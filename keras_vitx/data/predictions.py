"""Decoding of predictions to class names."""

import functools
from importlib import resources

import numpy as np

from keras_vitx.checks import PositiveInt, check, check_argument


def decode_predictions(predictions, top: int = 5, model=None) -> list[list[tuple]]:
    """Return the most probable classes per image, in descending order.

    Args:
        predictions: The outputs of a classifier for n images, (n, classes); for two classes, also
            (n, 1), the probability of the second one.
        top: Number of classes per image.
        model: A model with `class_names`. Without model or names, the 1,000 ImageNet classes are
            assumed.

    Returns:
        For each image, a list of (WordNet id, name, probability), as in `keras.applications`. The
        id of a model's own class is the number of its output, from "0".

    Raises:
        ValueError: if the predictions have another shape or are not finite, `top` isn't positive,
            or the number of classes differs from the number of names.
    """
    import keras  # Slow, and not needed by worker processes.

    from keras_vitx.outputs import class_names_of

    predictions = keras.ops.convert_to_numpy(predictions)
    check(predictions.ndim == 2, "`predictions` must be (n, classes).", predictions.shape)
    check(np.isfinite(predictions).all(), "`predictions` must be finite.", predictions)
    check_argument("top", top, PositiveInt)
    names = class_names_of(model)
    if predictions.shape[1] == 1 and names is not None and len(names) == 2:
        predictions = np.concatenate([1 - predictions, predictions], axis=1)
    count = predictions.shape[1]
    own = [(str(index), name) for index, name in enumerate(names or ())]
    classes = unnamed_classes(count) if names is None else own
    known = "ImageNet's 1000" if names is None else f"the {len(names)} of `class_names`"
    rule = f"`predictions` must be of as many classes as {known}, or pass the `model`."
    check(len(classes) == count, rule, count)
    return [
        [(*classes[i], float(row[i])) for i in np.argsort(-row, kind="stable")[:top]]
        for row in predictions.astype("float32")
    ]


def class_names(model, count: int) -> tuple[str, ...]:
    """Return names of `count` outputs (1: of two): of the model, ImageNet's, or "class 0", ..."""
    from keras_vitx.outputs import class_names_of

    names, outputs, count = class_names_of(model), count, max(count, 2)
    if names is not None and len(names) == count:
        return names
    rule = f"`model.class_names` must have a name for each of {count} classes."
    check(names is None or len(names) == outputs, rule, names)
    known = tuple(name for _, name in unnamed_classes(count))
    return known or tuple(f"class {index}" for index in range(count))


def unnamed_classes(count: int) -> tuple[tuple[str, str], ...]:
    """Return (WordNet id, name) of outputs without names: ImageNet's of 1,000, of others none."""
    return imagenet_classes() if count == 1000 else ()


@functools.cache
def imagenet_classes() -> tuple[tuple[str, str], ...]:
    """Return (WordNet id, first name) of each of the 1,000 ImageNet classes."""
    text = (resources.files(__package__) / "imagenet_classes.txt").read_text("utf-8")
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return tuple((synset, lemmas.split(",")[0]) for synset, lemmas in rows)
