"""Saving and loading whole models, in directories, repositories of the hub and `.keras` files."""

import importlib.metadata
import json
import math
import numbers
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors.numpy import save_file

from keras_vitx.checks import check
from keras_vitx.files import atomic_write, locked, remove_stale
from keras_vitx.keras_internals import sublayers, without_values
from keras_vitx.serialized import check_registered, objects_in
from keras_vitx.weights.card import image_processor, model_card
from keras_vitx.weights.catalog import CONSTRUCTORS, checkpoints_of
from keras_vitx.weights.convert import convert, has_checkpoint_names, to_checkpoint
from keras_vitx.weights.description import (
    CONFIG,
    KERAS_WEIGHTS,
    LIBRARY,
    SAFETENSORS,
    from_config,
    metadata_of,
    open_directory,
    read_config,
    writer_of,
)
from keras_vitx.weights.hub import SCHEME, Address, download, parse, upload
from keras_vitx.weights.keras_files import open_checked_h5, read_archive
from keras_vitx.weights.load import warn_not_finite
from keras_vitx.weights.reading import as_value_error, open_weights
from keras_vitx.weights.torch_files import import_torch
from keras_vitx.weights.transformers import PREPROCESSOR

# The classes of Keras that a config may name, by their modules. Of layers, the kinds that only
# compute: others can run code from their config, or open files named in it.
_ACTIVATIONS = "keras.src.activations.activations"
_PLAIN = re.compile(
    r"keras\.src\.(?:activations\.activations|constraints|dtype_policies|initializers|quantizers"
    r"|regularizers|layers\.(?:activations|attention|convolutional|merging|normalization|pooling"
    r"|regularization|reshaping|core\.(?:dense|einsum_dense|embedding|identity)))\b"
)

CARD = "README.md"
OWN_FILES = (CONFIG, CARD, PREPROCESSOR, SAFETENSORS, KERAS_WEIGHTS)

MAX_RATIO, SMALL = 8, 1 << 26
"""Bytes that a model's weights may take: times those of their file, or of a file of any size."""


def save(
    model: keras.Model,
    directory: str | os.PathLike,
    *,
    recipe: Any = None,
    accuracy: float | None = None,
    dataset: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> None:
    """Save a model to a directory that `load` and `weights=` can read, ready for the hub.

    The directory holds `config.json` (the model's layers, class names and preprocessing),
    `preprocessor_config.json` (the preprocessing, as Transformers' image processors spell it),
    `README.md` (a model card) and `model.safetensors`, the weights with the names of PyTorch
    checkpoints. If a variable has no such name (LoRA, quantized layers, layers of other families
    or custom layers), the weights are stored in `model.weights.h5` instead. A program that loads
    the directory meanwhile gets the old model or the new one. `push` uploads it.

    Args:
        model: A model of this package.
        directory: Path of a new or empty directory.
        recipe: How the model was trained, for the card: text, a
            `keras_vitx.training.Recipe`, or a dictionary. None takes what `fit` recorded:
            the recipe, data, accuracy and base, the weights that training began with.
        accuracy: Top-1 accuracy on the test images of `dataset`, between 0 and 1.
        dataset: Name of the training data.
        license: License identifier, as spelled on the hub, such as "apache-2.0".
        overwrite: Whether to write to a directory that is not empty. The files of a model in
            it are replaced; all others are kept.

    Raises:
        ValueError: if an argument is invalid, or a class or a function in the model is not
            registered with Keras.
        OSError: if the directory is not empty or can't be written.
    """
    rule = "`model` must be a model of keras_vitx (a Chain)."
    check(_is_chain(model), rule, type(model).__name__)
    for name, words in (("dataset", dataset), ("license", license)):
        check(isinstance(words, str | None), f"`{name}` must be a string or None.", words)
    if accuracy is not None:
        is_fraction = isinstance(accuracy, numbers.Real) and 0 <= accuracy <= 1
        check(is_fraction, "`accuracy` must be a fraction from 0 to 1.", accuracy)
        check(dataset, "`dataset` must name the data on which `accuracy` was measured.", dataset)
        accuracy = float(accuracy)
    recipe = _as_data(recipe)
    rule = "`directory` must be a directory; `keras_vitx.push` puts it on the hub."
    check(not os.fsdecode(directory).startswith(SCHEME), rule, directory)
    directory = Path(os.fsdecode(directory)).expanduser().resolve()
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"`directory` is a file: {directory}.")
    if directory.is_dir() and not overwrite and any(directory.iterdir()):
        raise FileExistsError(
            f"`directory` already holds something, which stays as it is: {directory}. Give "
            "another, or overwrite=True to replace the model in it."
        )

    check_registered(model)
    config = keras.saving.serialize_keras_object(model)
    # The layers build themselves, and the compile config is not saved.
    config = {key: config[key] for key in config if key not in ("build_config", "compile_config")}
    weights = SAFETENSORS if has_checkpoint_names(model) else KERAS_WEIGHTS
    custom_objects = sorted(foreign_objects(config))
    card = model_card(model, weights, recipe, accuracy, dataset, license, custom_objects)
    try:
        version = importlib.metadata.version(LIBRARY)
    except importlib.metadata.PackageNotFoundError:
        version = None  # Imported from a checkout that isn't installed.
    about = {
        "library_name": LIBRARY,
        "library_version": version,
        "keras_version": keras.__version__,
        "weights": weights,
        "recipe": recipe or (model.training_record or {}).get("recipe"),
        "model": config,
    }
    texts = {CONFIG: json.dumps(about, indent=1) + "\n", CARD: card}
    processor = model.preprocessing and image_processor(model.preprocessing, model.input_shape[1:3])
    if processor is not None:
        texts[PREPROCESSOR] = json.dumps(processor, indent=1) + "\n"
    # Others that save here wait, so that none misses files that another has copied.
    with locked(directory):
        remove_stale(directory)
        with atomic_write(directory) as temporary:
            temporary.mkdir()
            if directory.exists():
                # A copy of the other files, so that a failure leaves the directory unchanged.
                shutil.copytree(
                    directory,
                    temporary,
                    symlinks=True,
                    ignore=lambda here, _: OWN_FILES if here == os.fspath(directory) else (),
                    dirs_exist_ok=True,
                )
            for name, text in texts.items():
                (temporary / name).write_text(text, "utf-8")
            write = save_safetensors if weights == SAFETENSORS else keras.Model.save_weights
            write(model, temporary / weights)


def load(source: str | os.PathLike, custom_objects: Mapping[str, Any] | None = None) -> keras.Model:
    """Load a model from a directory, a hub repository or a `.keras` file.

    A directory of `save` or a repository may only use layers of this package and plain Keras
    layers, so it can't run arbitrary code. A `.keras` file, or a directory that Keras wrote
    (`zipped=False`), is checked for damage and for impossible sizes, and then loaded by Keras in
    safe mode, uncompiled. The config and the weights are of one version, even if the directory or
    the branch is replaced meanwhile.

    Args:
        source: A directory written by `save`; "hf://owner/repo" or "hf://owner/repo@revision"
            (a branch, tag or commit), which is such a directory on the hub or the source of a
            catalog checkpoint; or what Keras's `model.save` wrote, a `.keras` file or a directory.
        custom_objects: Additional classes and functions that the model may use, by
            registered name, as in `keras.saving.load_model`.

    Returns:
        The model, with its weights, class names and preprocessing.

    Raises:
        ValueError: if the source holds no model of this package, a file is damaged, or
            the model uses an object that is unknown or not allowed.
        OSError: if the source doesn't exist or can't be read.
    """
    source, custom_objects = os.fsdecode(source), dict(custom_objects or {})
    path = Path(source).expanduser()
    writer = writer_of(path)
    try:
        if source.startswith(SCHEME):
            model = _load_from_hub(parse(source), custom_objects)
        elif writer == "Keras" or (path.suffix == ".keras" and not path.is_dir()):
            model = _load_archive(path, custom_objects)
        elif writer or path.is_dir():
            with open_directory(path) as opened:
                model = _from_config(*opened, custom_objects)
        elif path.suffix in (".h5", ".hdf5"):
            raise ValueError(
                "the file is of Keras's legacy format, which is not read. Save the model to a "
                ".keras file, and give weights alone to `weights=`."
            )
        else:
            raise NotADirectoryError(
                f'{source!r} is not a directory. Give one, a .keras file, or "hf://owner/repo".'
            )
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    warn_not_finite(model, source)
    return model


def _load_from_hub(address: Address, custom_objects: dict) -> keras.Model:
    for known in checkpoints_of(None):
        if known.source == SCHEME + address.repository:
            tokens = {"distillation_token": True} if known.distillation_token else {}
            pinned = str(address._replace(file=known.file)) if address.revision else known.name
            constructor = CONSTRUCTORS[known.constructor]
            return constructor(weights=pinned, classes=known.classes, **tokens)
    path = download(address._replace(file=CONFIG))
    if path.parent.parent.name == "snapshots":
        # The same commit, should the branch move before the weights are downloaded.
        address = address._replace(revision=path.parent.name)
    config, name = read_config(path.read_bytes())
    _refuse(config, custom_objects)
    return _from_config(config, name, download(address._replace(file=name)), custom_objects)


def _load_archive(path: Path, custom_objects: dict) -> keras.Model:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("it is not a file.")  # Opening a pipe would wait for ever.
    if not path.is_dir():
        path.open("rb").close()  # Raises an OSError if the path is wrong.
    # Keras accepts archives that expand to a hundred times their size, and weights to a thousand.
    with as_value_error(".keras"):
        config, weights = read_archive(path)
        with open_checked_h5(weights):
            pass
    try:
        size = weights.stat().st_size if isinstance(weights, Path) else len(weights.getbuffer())
        _check_claims({**config, "compile_config": None}, custom_objects, size)
        return keras.saving.load_model(path, custom_objects, compile=False)
    except Exception as error:  # Keras raises whatever a bad config provokes.
        config.pop("compile_config", None)
        missing = {name for name, found in objects_in(config) if found is None}
        unknown = sorted(missing - custom_objects.keys())
        if not unknown:
            raise ValueError(f"Keras can't load it: {_reason(error)}") from error
        raise ValueError(
            f"it uses {', '.join(unknown)}, unknown here. Import the module of yours that "
            "registers it with Keras, or give the class of yours in `custom_objects`."
        ) from error


def _refuse(config: Any, custom_objects: dict) -> None:
    refused = sorted(foreign_objects(config).keys() - custom_objects.keys())
    if refused:
        raise ValueError(
            f"{CONFIG} can't be used: it uses {', '.join(refused):.300}, neither of keras_vitx nor "
            "a plain layer of Keras. If it is a class of yours, give it in `custom_objects`."
        )


def _check_claims(config: Any, custom_objects: dict, size: int) -> None:
    """Raise a ValueError, before an array is made, if a model has more weights than its file.

    `size` is that of the file, in bytes; weights may be stored in a quarter of their bytes, and
    others (LoRA's) not at all.
    """
    try:
        with without_values():
            # Keras takes a config apart.
            config = deepcopy(config)
            model = keras.saving.deserialize_keras_object(config, custom_objects, safe_mode=True)
            claimed = 4 * sum(math.prod(variable.shape) for variable in model.variables)
    except Exception:
        found = [each for _, each in objects_in(config) if each is not None]
        packages = {each.__module__.partition(".")[0] for each in found}
        if not custom_objects and packages <= {"keras", LIBRARY}:
            raise
        return  # A class of the user's may need values.
    if claimed > max(MAX_RATIO * size, SMALL):
        raise ValueError(f"its weights would take {claimed:,} bytes, and their file has {size:,}")


def _from_config(config: dict, name: str, weights: Path, custom_objects: dict) -> keras.Model:
    """Return the model of a config, with weights from the file called `name` in its directory."""
    _refuse(config, custom_objects)
    from_config(config)
    try:
        _check_claims(config, custom_objects, weights.stat().st_size)
        model = keras.saving.deserialize_keras_object(config, custom_objects, safe_mode=True)
        if not _is_chain(model):
            raise ValueError(f"it describes a {type(model).__name__}, not a model of keras_vitx")
    except Exception as error:  # Keras raises whatever a bad config provokes.
        raise ValueError(f"{CONFIG} can't be used: {_reason(error)}") from error
    _fill(model, name, weights)
    return model


def _fill(model: keras.Model, name: str, weights: Path) -> None:
    """Load every weight of the model from a file."""
    if name == SAFETENSORS:
        with open_weights(weights, model, name) as checkpoint:
            conversion = convert(checkpoint, model)
            if conversion.classes is not None and not conversion.head:
                raise ValueError(
                    f"{SAFETENSORS} has {conversion.classes} classes, unlike {CONFIG}."
                )
            for variable, array in conversion.arrays:
                variable.assign(array)
        return
    try:
        with open_checked_h5(weights), tempfile.TemporaryDirectory() as directory:
            # Keras knows its files by their suffix.
            copied = shutil.copyfile(weights, Path(directory, KERAS_WEIGHTS))
            model.load_weights(copied)
    except Exception as error:  # Keras raises whatever a bad file provokes.
        raise ValueError(f"{name} is damaged or doesn't fit: {_reason(error)}") from error
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False):
            # Keras saves the merged kernel and sets both factors to 0, where gradients vanish.
            values = keras.initializers.HeUniform()(layer.lora_kernel_a.shape)
            layer.lora_kernel_a.assign(values)


def push(directory: str | os.PathLike, repository: str, *, private: bool = False) -> str:
    """Upload a directory that `save` wrote to the Hugging Face hub.

    The repository is made if it doesn't exist. The token is that of `hf auth login` or of the
    environment variable `HF_TOKEN`.

    Args:
        directory: The directory.
        repository: "owner/repo".
        private: Whether a new repository is private.

    Returns:
        The address for `load` of the commit, "hf://owner/repo@COMMIT".

    Raises:
        ValueError: if the directory was not written by `save`, or the name is malformed.
        OSError: if the directory can't be read, or the hub refuses.
    """
    directory = Path(directory).expanduser()
    try:
        with open_directory(directory) as (_, weights, _):
            pass
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(f"{directory}: {error}") from error
    return upload(directory, repository, [CONFIG, CARD, PREPROCESSOR, weights], private)


def _is_chain(model: Any) -> bool:
    # By its registered name, as the models import the weights.
    return isinstance(model, keras.saving.get_registered_object("keras_vitx>Chain"))


def _reason(error: Exception) -> str:
    # Keras puts the cause of an error after the whole config.
    text = str(error).rpartition("Exception encountered: ")[2].strip()
    return (text or type(error).__name__).splitlines()[0][:300]


def _as_data(recipe: Any) -> Any:
    if hasattr(recipe, "to_dict"):
        recipe = recipe.to_dict()
    try:
        if recipe is None or isinstance(recipe, (str, dict)):
            return json.loads(json.dumps(recipe))
    except (TypeError, ValueError):
        pass
    raise ValueError(
        "`recipe` must be a string, a Recipe, or a dictionary that JSON can hold. "
        f"Received: {recipe!r}."
    )


def foreign_objects(config: Any) -> dict[str, Any]:
    """Return the objects of a config that `load` refuses, by name; None for those not found."""
    return {name: found for name, found in objects_in(config) if not _is_allowed(found)}


def _is_allowed(found: Any) -> bool:
    """Return whether an object is of this package, or one of Keras that only computes."""
    module = getattr(found, "__module__", None) or ""
    is_plain_class = isinstance(found, type) and _PLAIN.match(module) is not None
    return is_plain_class or module.partition(".")[0] == LIBRARY or module == _ACTIVATIONS


def save_safetensors(
    model,
    path: str | os.PathLike,
    dtype: str | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Save a model's weights as safetensors, with the names of PyTorch checkpoints.

    The metadata holds the model's name, family, grid, class names and preprocessing, which loading
    restores.

    Args:
        model: A built model of this package.
        path: Path of the file, ending in ".safetensors". It is written atomically.
        dtype: None for float32, or "float16" for half the size, where vectors (biases, scales,
            statistics) stay in float32.
        metadata: Additional string metadata, such as the provenance.

    Raises:
        ValueError: if an argument is invalid, or a weight overflows float16.
        OSError: if the file can't be written.
    """
    path = _check_path(path, ".safetensors")
    known = (None, "float32", "float16")
    check(dtype in known, f"`dtype` must be one of {known}.", dtype)
    model_metadata, metadata = metadata_of(model), metadata or {}
    are_strings = all(isinstance(each, str) for pair in metadata.items() for each in pair)
    check(are_strings, "`metadata` must be strings by name.", metadata)
    taken = sorted(metadata.keys() & model_metadata.keys())
    check(not taken, f"`metadata` must not have the model's own {sorted(model_metadata)}.", taken)
    tensors = to_checkpoint(model)
    if dtype == "float16":
        # Re-attention has variances of 1e-6, below float16's normal numbers, and means and biases
        # near 0.5 that cancel to differences of 1e-3.
        for name, array in tensors.items():
            if array.ndim < 2:
                continue
            with np.errstate(over="ignore"):
                tensors[name] = array.astype("float16")
            rule = f"`dtype` must be 'float32' for {name}, which has numbers beyond 65504."
            check(not np.isinf(tensors[name]).any(), rule, dtype)
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata={**model_metadata, **metadata})
        # safetensors creates files that only their owner can read, whatever the umask.
        temporary.chmod(temporary.parent.stat().st_mode & 0o666)


def save_torch(model, path: str | os.PathLike) -> None:
    """Save a model's weights as a PyTorch state dict.

    Args:
        model: A built model of this package.
        path: Path of the file, ending in ".pth". It is written atomically.

    Raises:
        ValueError: if `path` has another suffix.
        ImportError: if PyTorch isn't installed.
        OSError: if the file can't be written.
    """
    path = _check_path(path, ".pth")
    torch = import_torch(f"Writing {path}")
    state = {name: torch.from_numpy(array) for name, array in to_checkpoint(model).items()}
    with atomic_write(path) as temporary:
        torch.save(state, temporary)


def _check_path(path: str | os.PathLike, suffix: str) -> Path:
    path = Path(path).expanduser()
    check(path.suffix == suffix, f"`path` must end in {suffix}.", str(path))
    return path
