"""`keras-vitx train`: train or fine-tune a model on a folder, a dataset or the sample."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import keras_vitx as kv
from keras_vitx.cli import _devices
from keras_vitx.cli._models import is_size, open_model
from keras_vitx.cli._options import Backend, ModelOrFile, Source, Strict, Weights
from keras_vitx.cli._output import new_run, say
from keras_vitx.cli._recipe import Changes, RecipeName, Smoke, a_few_images, changes_of, weights_of
from keras_vitx.cli._resume import Keep, Resume, SaveEvery, extend, given, recorder, resumed
from keras_vitx.files import check_writable
from keras_vitx.text import printable


def main(
    context: typer.Context,
    model: ModelOrFile = None,
    source: Source = None,
    weights: Weights = None,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=VALUE",
            help="Argument of a size, such as dense_head=true or drop_path=0.2; may be repeated.",
        ),
    ] = None,
    recipe: RecipeName = "finetune",
    change: Changes = None,
    smoke: Smoke = False,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="A model whose predictions are learned, too: a .keras file, a folder or hf://..."
        ),
    ] = None,
    head: Annotated[
        Literal["match", "keep", "fresh"],
        typer.Option(
            help="How to treat a trained head: match it to the class names of the data, keep it, "
            "or reinitialize it."
        ),
    ] = "match",
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    freeze: Annotated[
        int | None,
        typer.Option(help="Epochs before the others in which only the head learns.", min=0),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Epochs without a better one after which training ends.", min=1),
    ] = None,
    class_weight: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=WEIGHT,...",
            help="Weights of classes in the loss, such as cat=2,dog=0.5; others weigh 1.",
        ),
    ] = None,
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Draw images of each class equally often."),
    ] = False,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    find_rate: Annotated[
        Path | None,
        typer.Option(
            help="Do not train: try rising learning rates, print the best one, and draw the loss "
            "to this file."
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the images in pixels, for a size. Default: that of the size or "
            "checkpoint.",
            min=1,
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"] | None,
        typer.Option(help="Precision of the computation. Default: that of the model."),
    ] = None,
    validation_split: Annotated[
        float,
        typer.Option(
            help="Fraction of each class held out for validation, if the source has no "
            "validation part."
        ),
    ] = 0.1,
    fraction: Annotated[
        float, typer.Option(help="Fraction of each class of the training images that is used.")
    ] = 1.0,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the results. Default: a new one under runs/."),
    ] = None,
    resume: Resume = None,
    save_every: SaveEvery = None,
    keep: Keep = 3,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.", min=0)] = 0,
    strict: Strict = False,
    devices: _devices.Devices = None,
    backend: Backend = None,
) -> None:
    """Train or fine-tune a model by a recipe."""
    if context is not None and resume is not None:
        options = resumed(context, resume)
        if kv.training.run.is_finished(resume) and "epochs" not in given(context):
            say(f"The run in {resume} is finished. `--epochs` with a larger number goes on.")
            return None
        main(None, **options)
        extend(resume, options["epochs"])
        return None
    if model is None or source is None:
        raise typer.BadParameter("MODEL and SOURCE are required, or --resume.")
    import keras

    _devices.use(devices)
    chief = kv.training.is_chief()
    if chief and resume is None:
        _check_output(output)
    options = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "freeze_epochs": freeze,
        "patience": patience,
        "precision": precision,
    }
    options = {name: value for name, value in options.items() if value is not None}
    # All at once: `epochs` scales the warm-up unless that is set, too.
    chosen = kv.training.recipes.get(recipe).but(**(changes_of(change) | options))
    if smoke:
        chosen = chosen.smoke()
    if image_size is not None and not is_size(model):
        raise ValueError(
            f"`--image-size` applies to a size; the image size of {model!r} is fixed. For another "
            f"one: `keras-vitx train SIZE {source} --weights {model} --image-size {image_size}`."
        )
    arguments = changes_of(argument, "--with")
    if arguments and not is_size(model):
        raise ValueError(f"`--with` applies to a size; {model!r} is built already.")
    keras.utils.set_random_seed(seed)
    images = kv.data.load_dataset(
        source, validation_split=validation_split, strict=strict, seed=seed
    )
    if smoke:
        images = a_few_images(images, chosen)
    if is_size(model):
        arguments["classes"] = len(images.class_names)
        if image_size is not None:
            arguments["input_shape"] = (image_size, image_size, 3)
    try:
        network = open_model(model, weights, **arguments)
    except TypeError as error:
        raise ValueError(f"`--with`: {error}") from None
    tutor = None
    if teacher is not None:
        if is_size(teacher):
            raise ValueError(
                f"`--teacher` must be a trained model. Received: the size {teacher!r}."
            )
        tutor = open_model(teacher)
    _check_classes(network, model, images)
    if find_rate is not None:
        rate = kv.training.find_learning_rate(network, images, chosen, path=find_rate, seed=seed)
        say(f"The loss falls fastest at {rate:.2g}; see {find_rate}.")
        return
    if chief:
        output = output or new_run(network.name)
    output = resume or output
    changed = changes_of(change) | options
    # Settings that `min_updates` of the recipe leaves alone.
    fixed = {name: changed[name] for name in ("epochs", "batch_size") if name in changed}
    fixed = {} if smoke else fixed
    try:
        kv.fit(
            network,
            images,
            chosen,
            **fixed,
            teacher=tutor,
            head=head,
            output=output,
            save_every=save_every if output else None,
            keep=keep,
            resume=resume is not None,
            callbacks=[recorder(context, output)] if chief and resume is None else [],
            class_weight=weights_of(class_weight),
            seed=seed,
            fraction=fraction,
            strict=strict,
            **({"sampling": "balanced"} if balanced else {}),
        )
    except (SystemExit, KeyboardInterrupt):
        if chief:
            typer.echo(printable(f"To continue: keras-vitx train --resume {output}"), err=True)
        raise
    if chief:
        say(f"Model, history and settings: {output}")


def _check_output(output: Path | None) -> None:
    if output is None:
        check_writable(Path("runs", "new"))
        return
    check_writable(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"`--output` {output} already exists. Give a new folder.")


def _check_classes(network, model: str, images) -> None:
    outputs, classes = network.output_shape[-1], len(images.class_names)
    if outputs != classes:
        raise ValueError(
            f"{model!r} has {outputs} classes, {images.name} has {classes}. To start from its "
            f"weights with a new head: `keras-vitx train SIZE ... --weights {model}`."
        )
