"""`keras-vitx info`: the facts about a size or a saved model."""

from typing import Any

import keras_vitx as kv
from keras_vitx.cli._models import class_names_of, is_size, open_model
from keras_vitx.cli._options import Backend, Csv, Json, ModelOrFile
from keras_vitx.cli._output import check_form, show, show_json, words


def main(model: ModelOrFile, json: Json = False, csv: Csv = False, backend: Backend = None) -> None:
    """Show the parameters, preprocessing and checkpoints of a model."""
    check_form(json, csv)
    facts = {"model": model, **_facts(model)}
    checkpoints = [
        {
            "checkpoint": entry.name,
            "image size": entry.image_size,
            "top-1 %": entry.top1,
            "classes": entry.classes,
            "licence": entry.licence,
            "source": entry.source,
        }
        for entry in kv.weights.checkpoints_of(model)
    ]
    if json:
        show_json({**facts, "checkpoints": checkpoints})
        return
    facts["checkpoints"] = [entry["checkpoint"] for entry in checkpoints] or "no public one"
    rows = [{"fact": name, "value": value} for name, value in facts.items()]
    show(rows, as_csv=csv, formats={"value": _grouped})
    if checkpoints and not csv:
        show(checkpoints)


def _facts(model: str) -> dict[str, Any]:
    network = open_model(model)
    facts = {}
    if is_size(model):
        facts |= kv.models.constructor_of(model).data
    else:
        facts["input_shape"] = network.input_shape[1:]
        facts["output_shape"] = network.output_shape[1:]
    facts["family"] = getattr(network, "family", None) or "none of keras_vitx"
    facts["parameters"] = network.count_params()
    preprocessing = getattr(network, "preprocessing", None)
    if preprocessing:
        facts |= preprocessing.to_dict()
    if class_names_of(network):
        facts["class names"] = class_names_of(network)
    return facts


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else words(value)
