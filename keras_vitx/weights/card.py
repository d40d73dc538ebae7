"""What the hub reads of a saved model: the card, README.md, and the image processor."""

import html
import json
import math
from collections.abc import Iterable
from typing import Any

from PIL import Image

from keras_vitx.preprocessing import Preprocessing


def model_card(
    model,
    weights: str,
    recipe: str | dict | None = None,
    accuracy: float | None = None,
    dataset: str | None = None,
    license: str | None = None,
    custom_objects: Iterable[str] = (),
) -> str:
    """Return the text of a model card, starting with the YAML metadata that the hub reads.

    Args:
        model: A built model of this package.
        weights: File name of the weights, in the same folder as the card.
        recipe: How the model was trained: text, or a dictionary of settings.
        accuracy: Top-1 accuracy on the test images of `dataset`, between 0 and 1.
        dataset: Name of the training data.
        license: License identifier, as spelled on the hub.
        custom_objects: Registered names of the custom objects that `load` needs.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    classifies = any(layer.name == "head" for layer in model.layers)
    task = "image-classification" if classifies else "image-feature-extraction"
    results = None
    if accuracy is not None:
        results = [EvalResult(task, dataset, dataset, "accuracy", accuracy)]
    data = ModelCardData(
        model_name=model.name,
        license=license,
        library_name="keras_vitx",
        pipeline_tag=task,
        tags=["keras", "keras_vitx", "vision-transformer"],
        datasets=dataset and [dataset],
        metrics=results and ["accuracy"],
        eval_results=results,
    )
    height, width, channels = model.input_shape[1:]
    output = f"{model.output_shape[-1]} classes" if classifies else f"features {model.output_shape}"
    pytorch = ", with the names of PyTorch checkpoints" * weights.endswith(".safetensors")
    preprocessing = model.preprocessing.to_dict() if model.preprocessing else {}
    rows = {
        "Family": model.family or "none",
        "Parameters": f"{model.count_params():,}",
        "Images": f"{height} x {width} x {channels}",
        "Output": output,
        "Accuracy": "not stated" if accuracy is None else f"{accuracy:.2%} (top-1, {dataset})",
        "Trained on": dataset or "not stated",
        "License": license or "not stated",
        "Weights": f"`{weights}`{pytorch}",
        **{f"Images' {name}": value for name, value in preprocessing.items()},
    }
    parts = (
        f"---\n{data.to_yaml()}\n---",
        f"# {_escaped(model.name)}",
        "A vision transformer for Keras 3, on TensorFlow, JAX and PyTorch.",
        "| | |\n|---|---|\n"
        + "\n".join(f"| {name} | {_escaped(value)} |" for name, value in rows.items()),
        f"## Use\n\n```python\n{_use(model, classifies, custom_objects)}\n```",
        f"## Training\n\n{_training(recipe)}",
    )
    return str(ModelCard("\n\n".join(parts) + "\n"))


def _escaped(value: Any) -> str:
    """Return a value as text on one line of a table, without HTML."""
    return " ".join(html.escape(str(value), quote=False).replace("|", "\\|").split())


def _use(model, classifies, custom_objects) -> str:
    given = ", ".join(f'"{name}": {name.rpartition(">")[2]}' for name in custom_objects)
    given = f", custom_objects={{{given}}}" if given else ""
    lines = [
        "import keras_vitx as kv",
        "",
        f'model = kv.load("hf://owner/repo"{given})  # or the path of this folder',
        'outputs = model.predict(kv.preprocess_input(["photo.jpg"], model))',
    ]
    if classifies and (model.class_names or model.output_shape[-1] == 1000):
        lines.append("print(kv.decode_predictions(outputs, model=model))")
    return "\n".join(lines)


def _training(recipe) -> str:
    if recipe is None:
        return "Not stated."
    if isinstance(recipe, str):
        return html.escape(recipe, quote=False)
    # No text of the recipe can end the block.
    content = json.dumps(recipe, indent=2).replace("`", "\\u0060")
    return f"```json\n{content}\n```"


def image_processor(preprocessing: Preprocessing, size: tuple[int, int]) -> dict[str, Any] | None:
    """Return a preprocessing as the config of an image processor of Transformers.

    Args:
        preprocessing: The preprocessing of a model.
        size: Height and width of its images, in pixels.

    Returns:
        The content of `preprocessor_config.json`; None if Transformers can't do the same: the
        images are not square or not in color.
    """
    if size[0] != size[1] or len(preprocessing.mean) != 3:
        return None
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": math.floor(size[0] / preprocessing.crop_ratio)},
        "resample": int(Image.Resampling[preprocessing.interpolation.upper()]),
        "do_center_crop": True,
        "crop_size": {"height": size[0], "width": size[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
