"""The model card and the image processor config of a saved model on the hub."""

import html
import json
import math
from collections.abc import Iterable
from typing import Any

from PIL import Image

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.provenance import digest_of
from keras_vitx.text import shortened


def model_card(
    model,
    weights: str,
    recipe: str | dict | None = None,
    accuracy: float | None = None,
    dataset: str | None = None,
    license: str | None = None,
    custom_objects: Iterable[str] = (),
) -> str:
    """Return the text of a model card, starting with the YAML metadata for the hub.

    `weights` is a file beside the card, `accuracy` the top-1 accuracy on the test images of
    `dataset`, in 0..1, and `custom_objects` are the registered names that `load` needs. What is not
    given is that of the model's `training_record`.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    record, split = model.training_record or {}, "test"
    is_current = record.get("weights") == digest_of(model)
    if is_current and accuracy is None and dataset is None:
        split = next((name for name in ("test", "validation") if record.get(name)), split)
        accuracy = (record.get(split) or {}).get("accuracy")
    trained_on = dataset or record.get("data") or "not stated"
    measured_on = f"{split} images of {dataset or record.get('data') or 'the training data'}"
    classifies = any(layer.name == "head" for layer in model.layers)
    task = "image-classification" if classifies else "image-feature-extraction"
    results = None
    if accuracy is not None:
        name = dataset or measured_on
        results = [EvalResult(task, name, name, "accuracy", accuracy, dataset_split=split)]
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
    pytorch = ", with the names of PyTorch checkpoints" * weights.endswith(".safetensors")
    preprocessing = model.preprocessing.to_dict() if model.preprocessing else {}
    names = f": {shortened(map(str, model.class_names), 20)}" if model.class_names else ""
    rows = {
        "Family": model.family or "none",
        "Parameters": f"{model.count_params():,}",
        "Images": f"{height} x {width} x {channels}",
        "Output": f"{model.output_shape[-1]} classes{names}" if classifies else model.output_shape,
        "Accuracy": "not stated" if accuracy is None else f"{accuracy:.2%} (top-1, {measured_on})",
        "Trained on": trained_on,
        "Base": record.get("base") or "none known",
        "License": license or "not stated",
        "Weights": f"`{weights}`{pytorch}",
        **{f"Images' {name}": value for name, value in preprocessing.items()},
    }
    table = "\n".join(f"| {name} | {_table_cell(value)} |" for name, value in rows.items())
    objects = ", ".join(f'"{name}": {name.rpartition(">")[2]}' for name in custom_objects)
    objects = objects and f", custom_objects={{{objects}}}"
    code = (
        "import keras_vitx as kv\n\n"
        f'model = kv.load("hf://owner/repo"{objects})  # or the path of this directory\n'
        'outputs = model.predict(kv.preprocess_input(["photo.jpg"], model))'
    )
    if classifies and (model.class_names or model.output_shape[-1] == 1000):
        code += "\nprint(kv.decode_predictions(outputs, model=model))"
    training = ""
    if recipe is None and "recipe" in record:
        recipe = record["recipe"]
        images, epoch, seed = (_table_cell(record.get(k)) for k in ("images", "best_epoch", "seed"))
        training = f"By `keras_vitx.fit` on {images} images, with the seed {seed}; the weights are "
        training += f"those of epoch {epoch}{'' if is_current else ', changed afterwards'}.\n\n"
    if isinstance(recipe or "", str):
        training += html.escape(recipe or "Not stated.", quote=False)
    else:
        # A backtick in the recipe could end the code block.
        content = json.dumps(recipe, indent=2).replace("`", "\\u0060")
        training += f"```json\n{content}\n```"
    sections = (
        f"---\n{data.to_yaml()}\n---",
        f"# {_table_cell(model.name)}",
        "A vision transformer for Keras 3, on TensorFlow, JAX and PyTorch.",
        f"| | |\n|---|---|\n{table}",
        f"## Use\n\n```python\n{code}\n```",
        f"## Training\n\n{training}",
    )
    return str(ModelCard("\n\n".join(sections) + "\n"))


def _table_cell(value: Any) -> str:
    """Return a value as one line of text, with HTML and `|` escaped."""
    return " ".join(html.escape(str(value), quote=False).replace("|", "\\|").split())


def image_processor(preprocessing: Preprocessing, size: tuple[int, int]) -> dict[str, Any] | None:
    """Return the `preprocessor_config.json` of Transformers for images of size (height, width).

    None if it has no equivalent: if the images are not square or not in color.
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
