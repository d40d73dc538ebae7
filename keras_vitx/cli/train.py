"""`keras-vitx train`: train or fine-tune a model on a directory, a dataset or the sample."""

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import typer
from typer import Option

import keras_vitx as kv
from keras_vitx.cli._options import (
    Backend,
    ModelOrFile,
    Source,
    Strict,
    Weights,
    is_size,
    open_model,
)
from keras_vitx.cli._output import check_new_directory, new_run, say
from keras_vitx.files import atomic_write

# Not by `kv.training.list_recipes`, because Keras is imported after the options are parsed.
RECIPES = sorted(
    path.stem for path in (Path(__file__).parents[1] / "training" / "recipes").glob("[!_]*.py")
)
COMMAND = "command.json"
"""File in the directory of a run: the options of the command that started it."""
FREE = ("epochs", "save_every", "keep", "backend")
"""Options that may differ when a run is resumed."""
SETTINGS = ("epochs", "freeze_epochs", "batch_size", "learning_rate", "precision")
"""Options that are settings of the recipe."""
SMOKE_STEPS = 3


def _choose_backend(directory: Path | None) -> Path | None:
    if directory is not None:
        # `--backend` has precedence.
        os.environ.setdefault("KERAS_BACKEND", _read_command(directory)["backend"])
    return directory


def main(
    context: typer.Context,
    model: ModelOrFile = None,
    source: Source = None,
    weights: Weights = None,
    argument: list[str] | None = Option(
        None,
        "--with",
        metavar="NAME=VALUE",
        help="Argument of a size, such as drop_path=0.2. Repeatable.",
    ),
    recipe: str = Option(
        "finetune",
        metavar="RECIPE",
        help=f"{', '.join(RECIPES)}; or the directory of a run, for its recipe.",
    ),
    change: list[str] | None = Option(
        None,
        "--set",
        metavar="NAME=VALUE",
        help="Setting of the recipe, such as mixup=0.2, patience=5 or "
        "clip_norm=none (`keras-vitx list --recipes NAME` has all). Repeatable.",
    ),
    smoke: bool = Option(False, "--smoke", help="Try the recipe on a few images, in a few steps."),
    teacher: str | None = Option(None, metavar="MODEL", help="A model to distill from."),
    head: Literal["match", "keep", "fresh"] = Option(
        "match",
        metavar="HOW",
        help="match a trained head to the class names of the data, keep it, or start with a "
        "fresh one.",
    ),
    epochs: int | None = Option(None, help="Passes over the training images."),
    freeze_epochs: int | None = Option(
        None, "--freeze", help="Epochs at the start that train the head only.", min=0
    ),
    batch_size: int | None = Option(None, help="Images per step."),
    learning_rate: float | None = Option(None, help="Peak learning rate."),
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] | None = Option(
        None,
        metavar="POLICY",
        help="float32, mixed_bfloat16 or mixed_float16. Default: the model's.",
    ),
    class_weight: str | None = Option(
        None, metavar="NAME=W,...", help="Weights of classes in the loss; others weigh 1."
    ),
    balanced: bool = Option(False, "--balanced", help="Draw images of each class equally often."),
    image_size: int | None = Option(
        None, help="Side of the images of a size. Default: the checkpoint's.", min=1
    ),
    validation_split: float = Option(
        0.1, help="Fraction of each class to hold out if the source has no validation split."
    ),
    fraction: float = Option(1.0, help="Fraction of the training images to use."),
    output: Path | None = Option(
        None, help="Directory for the results. Default: a new one under runs/."
    ),
    resume: Path | None = Option(
        None,
        help="Directory of an interrupted run to continue with its settings.",
        # Before --backend, and before Keras is imported.
        is_eager=True,
        callback=_choose_backend,
    ),
    save_every: int | None = Option(
        None, help="Steps between checkpoints. Default: one per epoch.", min=1
    ),
    keep: int = Option(3, help="Number of checkpoints to keep.", min=1),
    seed: int = Option(0, help="Seed of weights, order, augmentation.", min=0),
    strict: Strict = False,
    devices: str | None = Option(
        None, help="Number of devices that share each batch, or all. Default: one."
    ),
    backend: Backend = None,
) -> None:
    """Train or fine-tune a model by a recipe."""
    options = dict(context.params)
    if resume is not None:
        source_of = context.get_parameter_source
        changes = {name: v for name, v in options.items() if source_of(name).name == "COMMANDLINE"}
        options = _resume_options(changes, resume)
        if kv.training.run.read_run(resume).get("finished") and "epochs" not in changes:
            say(f"The run in {resume} is finished. `--epochs` with a larger number goes on.")
            return
    elif model is None or source is None:
        raise typer.BadParameter("MODEL and SOURCE are required, or --resume.")
    _train(SimpleNamespace(**options))


def _train(options: SimpleNamespace) -> None:
    import keras

    use_devices(options.devices)
    chief = kv.training.is_chief()
    if chief and options.resume is None:
        check_new_directory(options.output or Path("runs", "new"))
    changes = named_values(options.change, "--set")
    settings = {name: getattr(options, name) for name in SETTINGS}
    changes |= {name: value for name, value in settings.items() if value is not None}
    recipe = kv.training.recipes.get(options.recipe).replace(**changes)
    if options.smoke:
        recipe, changes = recipe.smoke(), {}
    keras.utils.set_random_seed(options.seed)
    dataset = kv.data.load_dataset(
        options.source,
        validation_split=options.validation_split,
        strict=options.strict,
        seed=options.seed,
    )
    if options.smoke:
        dataset = _few_images(dataset, recipe.batch_size)
    network = _open(options, len(dataset.class_names), dataset.name)
    if options.teacher is not None and is_size(options.teacher):
        raise ValueError(
            f"`--teacher` must be a trained model. Received: the size {options.teacher!r}."
        )
    teacher = None if options.teacher is None else open_model(options.teacher)
    output = options.resume or options.output
    if chief:
        output = output or new_run(network.name)
    weights = options.class_weight
    try:
        kv.fit(
            network,
            dataset,
            recipe,
            **changes,
            teacher=teacher,
            head=options.head,
            output=output,
            save_every=options.save_every if output else None,
            keep=options.keep,
            resume=options.resume is not None,
            callbacks=[_recorder(options, Path(output))] if chief else [],
            class_weight=weights and named_values(weights.split(","), "--class-weight"),
            seed=options.seed,
            fraction=options.fraction,
            strict=options.strict,
            **({"sampling": "balanced"} if options.balanced else {}),
        )
    except (SystemExit, KeyboardInterrupt):
        if chief:
            say(f"To continue: keras-vitx train --resume {output}", error=True)
        raise
    if chief:
        say(f"Model, history and settings: {output}")


def _open(options: SimpleNamespace, classes: int, source: str):
    """Return the model; check that it has as many classes as the source."""
    model, side = options.model, options.image_size
    arguments = named_values(options.argument, "--with")
    if is_size(model):
        arguments["classes"] = classes
        if side is not None:
            arguments["input_shape"] = (side, side, 3)
    elif arguments:
        raise ValueError(f"`--with` applies to a size; {model!r} is built already.")
    elif side is not None:
        raise ValueError(
            f"`--image-size` applies to a size; the image size of {model!r} is fixed. For another "
            f"one: `keras-vitx train SIZE {source} --weights {model} --image-size {side}`."
        )
    try:
        network = open_model(model, options.weights, **arguments)
    except TypeError as error:
        raise ValueError(f"`--with`: {error}") from None
    if network.output_shape[-1] != classes:
        raise ValueError(
            f"{model!r} has {network.output_shape[-1]} classes, {source} has {classes}. To start "
            f"from its weights with a new head: `keras-vitx train SIZE ... --weights {model}`."
        )
    return network


def _few_images(dataset: Any, batch_size: int) -> Any:
    """Return a dataset of images for a few steps per epoch."""
    splits = {}
    for name, steps in {"train": SMOKE_STEPS, "validation": 1, "test": 1}.items():
        split = getattr(dataset, name)
        if split is not None:
            count = min(steps * batch_size, split.size)
            splits[name] = split.take(np.linspace(0, split.size - 1, count).astype(int))
    return dataclasses.replace(dataset, **splits)


def named_values(words: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Return values by name from texts such as `mixup=0.2`; raises a ValueError without `=`.

    Values are numbers, `true`, `false`, `none`, tuples of these separated by commas, or text.
    """
    values = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"`{option}` must be NAME=VALUE. Received: {word!r}.")
        values[name.strip()] = _value(value.strip())
    return values


def _value(text: str) -> Any:
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return tuple(_value(item.strip()) for item in text.split(","))
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def use_devices(devices: str | None) -> None:
    """Use the devices of the option; under PyTorch, `torchrun` restarts this process, once."""
    import keras

    if devices is None:
        return
    if devices != "all" and not (devices.isdecimal() and int(devices)):
        raise ValueError(f"`--devices` must be 'all' or at least 1. Received: {devices!r}.")
    count = "all" if devices == "all" else int(devices)
    if keras.backend.backend() == "torch" and "LOCAL_RANK" not in os.environ:
        import torch

        gpus = torch.cuda.device_count()
        available, kind = (gpus, "GPUs") if gpus else (os.cpu_count(), "CPU cores")
        count = (gpus or 1) if count == "all" else count
        if count > available:
            raise ValueError(
                f"`--devices` must be at most {available}, the number of {kind}. Received: {count}."
            )
        if count > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            command = [sys.executable, *launch, "-m", "keras_vitx.cli", *sys.argv[1:]]
            os.execv(sys.executable, command)
    kv.training.use_devices(count)
    if not kv.training.is_chief():
        logging.getLogger("keras_vitx").setLevel(logging.ERROR)


def _recorder(options: SimpleNamespace, directory: Path) -> Any:
    """Return a callback that writes the options of the command to the directory of its run."""
    import keras

    record = _as_data(vars(options)) | {"backend": keras.backend.backend(), "resume": None}

    def write(logs):
        with atomic_write(directory / COMMAND) as path:
            path.write_text(json.dumps(record, indent=2) + "\n")

    return keras.callbacks.LambdaCallback(on_train_begin=write)


def _as_data(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as JSON data, with absolute paths of the model and the source."""
    data = json.loads(json.dumps(options, default=str))
    for name in ("model", "source"):
        if data.get(name) and Path(data[name]).exists():
            data[name] = str(Path(data[name]).absolute())
    return data


def _read_command(directory: Path) -> dict[str, Any]:
    """Return the options that started a run; raises a ValueError if `directory` has none."""
    path = directory / COMMAND
    if not path.is_file():
        raise ValueError(
            f"`--resume`: {directory} is a run that was started in Python: continue it by the same "
            "call of `kv.fit` with `resume=True`."
            if (directory / "run.json").is_file()
            else f"`--resume`: {directory} is not the directory of a run: it has no {COMMAND}."
        )
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}).") from error


def _resume_options(changes: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return a run's options with changes of `FREE` ones; raises a ValueError for others."""
    options = _read_command(directory)
    differences = [
        f"{name} was {options.get(name)!r}, is now {value!r}"
        for name, value in _as_data(changes).items()
        if name not in (*FREE, "resume", "output") and value != options.get(name)
    ]
    if differences:
        raise ValueError(
            f"`--resume` continues the run in {directory} as it was started: "
            f"{'; '.join(differences)}."
        )
    return {**options, "resume": directory} | {
        name: changes[name] for name in FREE if name in changes
    }
