"""Saving and loading whole models: folders, hub repositories and `.keras` files."""

import dataclasses
import importlib.metadata
import json
import numbers
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx.files import written_whole
from keras_vitx.keras_internals import sublayers
from keras_vitx.models.allowed import foreign_objects, how_to_give
from keras_vitx.models.build import create_model
from keras_vitx.models.chain import Chain
from keras_vitx.weights import (
    check_archive,
    checkpoints_of,
    convert,
    has_checkpoint_names,
    model_card,
    save_safetensors,
)
from keras_vitx.weights.description import LIBRARY
from keras_vitx.weights.hub import SCHEME, download, parse
from keras_vitx.weights.reading import opened
from keras_vitx.weights.reading.folder import CONFIG, KERAS_WEIGHTS, SAFETENSORS, read_config
from keras_vitx.weights.reading.h5 import check_h5

CARD = "README.md"


def save(
    model: Chain,
    folder: str | os.PathLike,
    *,
    recipe: Any = None,
    accuracy: float | None = None,
    dataset: str | None = None,
    licence: str | None = None,
    overwrite: bool = False,
) -> None:
    """Save a model to a folder that `load` and `weights=` can read, ready for the hub.

    The folder holds `config.json` (the model's layers, class names and
    preprocessing), `README.md` (a model card) and `model.safetensors`, the weights
    with the names of PyTorch checkpoints. If a variable has no such name (LoRA,
    quantized layers, layers of other families or custom layers), the weights are stored in
    `model.weights.h5` instead. The folder is written atomically.

    Args:
        model: A model of this package.
        folder: Path of a new or empty folder.
        recipe: How the model was trained, for the card: text, a
            `keras_vitx.training.Recipe`, or a dictionary such as the `run.json` of `fit`.
        accuracy: Top-1 accuracy on the test images of `dataset`, between 0 and 1.
        dataset: Name of the training data.
        licence: Licence identifier, as spelled on the hub, such as "apache-2.0".
        overwrite: Whether to write to a folder that is not empty. The files of a model in
            it are replaced; all others are kept.

    Raises:
        ValueError: if an argument is invalid.
        OSError: if the folder is not empty or can't be written.
    """
    if not isinstance(model, Chain):
        raise ValueError(
            f"`model` must be a model of keras_vitx (a Chain). Received: {type(model).__name__}."
        )
    for name, words in (("dataset", dataset), ("licence", licence)):
        if words is not None and not isinstance(words, str):
            raise ValueError(f"`{name}` must be words or None. Received: {words!r}.")
    if accuracy is not None:
        if not isinstance(accuracy, numbers.Real) or not 0 <= accuracy <= 1:
            raise ValueError(f"`accuracy` must be a share from 0 to 1. Received: {accuracy!r}.")
        if not dataset:
            raise ValueError("`accuracy` needs `dataset`, the name of the data it was measured on.")
        accuracy = float(accuracy)
    recipe = _as_data(recipe)
    folder = _writable(folder, overwrite)

    config = keras.saving.serialize_keras_object(model)
    # The layers build themselves, and the compile config is not saved.
    config = {key: config[key] for key in config if key not in ("build_config", "compile_config")}
    weights = SAFETENSORS if has_checkpoint_names(model) else KERAS_WEIGHTS
    card = model_card(
        model, weights, recipe, accuracy, dataset, licence, sorted(foreign_objects(config))
    )
    about = {
        "library_name": LIBRARY,
        "library_version": _version(),
        "keras_version": keras.__version__,
        "weights": weights,
        "recipe": recipe,
        "model": config,
    }
    with written_whole(folder) as unfinished:
        if folder.exists():
            # A copy, so that a failure leaves the folder unchanged.
            shutil.copytree(folder, unfinished, symlinks=True, ignore=_ignore_model(folder))
        else:
            unfinished.mkdir()
        (unfinished / CONFIG).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        (unfinished / CARD).write_text(card, "utf-8")
        if weights == SAFETENSORS:
            save_safetensors(model, unfinished / SAFETENSORS)
        else:
            model.save_weights(unfinished / KERAS_WEIGHTS)


def load(source: str | os.PathLike, custom_objects: Mapping[str, Any] | None = None) -> keras.Model:
    """Load a model from a folder, a hub repository or a `.keras` file.

    A folder or a repository may only use layers of this package and plain Keras layers, so
    it can't run arbitrary code. A `.keras` file is checked for damage and for impossible
    sizes, and then loaded by Keras in safe mode, uncompiled.

    Args:
        source: A folder written by `save`; "hf://owner/repo" or "hf://owner/repo@revision"
            (a branch, tag or commit), which is such a folder on the hub or the source of a
            catalogue checkpoint; or a `.keras` file.
        custom_objects: Additional classes and functions that the model may use, by
            registered name, as in `keras.saving.load_model`.

    Returns:
        The model, with its weights, class names and preprocessing.

    Raises:
        ValueError: if the source holds no model of this package, a file is damaged, or
            the model uses an object that is unknown or not allowed.
        OSError: if the source doesn't exist or can't be read.
    """
    source, custom_objects = os.fspath(source), dict(custom_objects or {})
    if source.startswith(SCHEME):
        address = parse(source)
        for known in checkpoints_of(None):
            if known.source == SCHEME + address.repository:
                tokens = {"distillation_token": True} if known.distillation_token else {}
                pinned = str(address._replace(file=known.file)) if address.revision else known.name
                return create_model(
                    known.constructor, weights=pinned, classes=known.classes, **tokens
                )
        return _load_folder(
            source, lambda file: download(address._replace(file=file)), custom_objects
        )
    path = Path(source).expanduser()
    if path.is_dir():
        return _load_folder(source, lambda file: _existing(path / file), custom_objects)
    if path.suffix == ".keras":
        return _load_archive(path, custom_objects)
    raise NotADirectoryError(
        f'{source!r} is no folder. Give one, a .keras file, or "hf://owner/repo".'
    )


def _load_archive(path: Path, custom_objects: dict) -> keras.Model:
    config = check_archive(path)
    try:
        return keras.saving.load_model(path, custom_objects, compile=False)
    except Exception as error:  # Keras raises whatever a bad config provokes.
        unknown = {
            name: module
            for name, module in foreign_objects(config).items()
            if name not in custom_objects
            and keras.saving.get_registered_object(name) is None
            and (module or "").partition(".")[0] != "keras"
        }
        if not unknown:
            raise ValueError(f"{path}: Keras can't load it: {_reason(error)}") from error
        raise ValueError(
            f"{path}: it uses {', '.join(sorted(unknown))}, unknown here. Import the module that "
            f"registers it with Keras, or give {how_to_give(unknown)}."
        ) from error


def _load_folder(source: str, fetch: Callable[[str], Path], custom_objects: dict) -> Chain:
    try:
        config, weights = read_config(fetch(CONFIG))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    try:
        refused = {
            name: module
            for name, module in foreign_objects(config).items()
            if name not in custom_objects
        }
        if refused:
            raise ValueError(
                f"it uses {', '.join(sorted(refused))}, neither of keras_vitx nor a plain "
                f"layer of Keras. If you trust it, give {how_to_give(refused)}."
            )
        model = keras.saving.deserialize_keras_object(config, custom_objects, safe_mode=True)
        if not isinstance(model, Chain):
            raise ValueError(f"it describes a {type(model).__name__}, not a model of keras_vitx")
    except Exception as error:  # Keras raises whatever a bad config provokes.
        raise ValueError(f"{source}: {CONFIG} can't be used: {_reason(error)}") from error
    try:
        _fill(model, fetch(weights))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return model


def _fill(model: Chain, weights: Path) -> None:
    """Load every weight of the model."""
    if weights.name == SAFETENSORS:
        with opened(weights, model) as tensors:
            conversion = convert(tensors, model)
            if conversion.classes is not None and not conversion.head:
                raise ValueError(
                    f"{SAFETENSORS} has {conversion.classes} classes, unlike {CONFIG}."
                )
            for variable, array in conversion:
                variable.assign(array)
        return
    try:
        check_h5(weights, np.memmap(weights, "uint8", "r"))
        model.load_weights(weights)
    except Exception as error:  # Keras raises whatever a bad file provokes.
        raise ValueError(f"{weights.name} is damaged or doesn't fit: {_reason(error)}") from error
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False):
            # Keras saves the merged kernel and sets both factors to 0, where gradients vanish.
            values = keras.initializers.HeUniform()(layer.lora_kernel_a.shape)
            layer.lora_kernel_a.assign(values)


def _reason(error: Exception) -> str:
    # Keras puts the cause of an error after the whole config.
    text = str(error).rpartition("Exception encountered: ")[2].strip()
    return (text or type(error).__name__).splitlines()[0][:300]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"There is no {path.name} in the folder {str(path.parent)!r}.")
    return path


def _writable(folder: str | os.PathLike, overwrite: bool) -> Path:
    if os.fspath(folder).startswith(SCHEME):
        raise ValueError(
            f"`folder` must be a folder, which `hf upload OWNER/REPO FOLDER` puts on the hub. "
            f"Received: {folder!r}."
        )
    folder = Path(folder).expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"`folder` is a file: {folder}.")
    if folder.is_dir() and not overwrite and any(folder.iterdir()):
        raise FileExistsError(
            f"`folder` already holds something, which stays as it is: {folder}. Give another, or "
            "overwrite=True to replace the model in it."
        )
    return folder


def _ignore_model(folder: Path) -> Callable[[str, list[str]], Iterable[str]]:
    """Return an `ignore` function for `copytree` that skips the files of the old model."""
    own = {CONFIG, CARD, SAFETENSORS, KERAS_WEIGHTS}
    return lambda here, names: own & set(names) if Path(here) == folder else ()


def _as_data(recipe: Any) -> Any:
    if dataclasses.is_dataclass(recipe):
        recipe = dataclasses.asdict(recipe)
    try:
        if recipe is None or isinstance(recipe, (str, dict)):
            return json.loads(json.dumps(recipe))
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"`recipe` must be words, a Recipe, or a dictionary that JSON can hold. Received: {recipe!r}."
    )


def _version() -> str | None:
    try:
        return importlib.metadata.version(LIBRARY)
    except importlib.metadata.PackageNotFoundError:
        return None  # Imported from a checkout that isn't installed.
