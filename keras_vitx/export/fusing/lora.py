"""LoRA updates, merged into the kernels."""

from typing import Any

import keras

from keras_vitx.export.fusing.values import Values, array
from keras_vitx.keras_internals import sublayers

ARGUMENTS = ("lora_rank", "lora_alpha")


def merge_lora(model: keras.Model, values: Values) -> None:
    r"""Replace each kernel $W$ with an update by $W + \frac{\alpha}{r} A B$.

    Args:
        model: The original model.
        values: The values of the variables, which are changed.
    """
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False):
            name = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
            paths = {variable.name: variable.path for variable in layer.weights}
            values[paths[name]] = array(getattr(layer, name))
            values.drop(paths[f"lora_{name}_a"])
            values.drop(paths[f"lora_{name}_b"])


def without_lora(described: Any) -> Any:
    """Return a serialized model without the arguments of LoRA."""
    if isinstance(described, (list, tuple)):
        return [without_lora(item) for item in described]
    if not isinstance(described, dict):
        return described
    # `Layer.get_config` lists there what was adapted after construction.
    result = {name: without_lora(value) for name, value in described.items() if name != "adapted"}
    if str(described.get("module")).startswith("keras."):
        inner = result["config"]
        result["config"] = {name: inner[name] for name in inner if name not in ARGUMENTS}
    return result
