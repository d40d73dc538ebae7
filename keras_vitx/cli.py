"""The command line `keras-vitx`, also `python -m keras_vitx.cli`.

A command has the options of the function that it calls: `options_of` reads their types, defaults
and help from its signature and docstring. Keras is imported after `--backend` is read.
"""

import glob
import inspect
import itertools
import json as json_text
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Parameter
from docstring_parser import parse as parse_docstring
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from rich.text import Text

import keras_vitx as kv
from keras_vitx import backend as backends

app = App(
    name="keras-vitx",
    help="Vision transformers with modified attention: train, measure, explore and export them.",
    help_format="markdown",
    version=kv.__version__,
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
    default_parameter=Parameter(
        negative=(), consume_multiple=True, show_default=lambda value: value or None
    ),
)
# `start` passes them on: the options of a command are known when it is named.
app.meta.help_flags = app.meta.version_flags = ()

HIDDEN = {"callbacks", "charts", "images", "name", "names", "path", "perturb", "predictions"}
SHELL_TYPES = (bool, int, float, str, tuple, NoneType, Literal, Sequence, Iterable)


def option(kind: Any, text: str) -> Any:
    """Return the type of an option with its help."""
    return Annotated[kind, Parameter(help=text)]


Model = option(str, "A size (`keras-vitx list`), a `.keras` file or `hf://owner/repo`.")
Weights = option(
    str | None,
    "Of a size: `imagenet`, a checkpoint's name (`keras-vitx list --weights`), a file, "
    "`hf://owner/repo` or `none`. Default: a checkpoint's; to train, none.",
)
Source = option(str, "Directories of classes, `.csv`, `.npz`, `tfds:NAME` or `fashion_mnist`.")
Images = option(list[str], "Image files, and directories; exit code 1 if one can't be read.")
File = option(Path, "The file or directory to write; its suffix is the format.")
Json = option(bool, "Print JSON.")


def main() -> None:
    """Run the command line: an error is one line on standard error, with exit code 1."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_vitx").setLevel(logging.INFO)
    try:
        code = app.meta(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough: what is left is not written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (CycloptsError, ValueError, TypeError, OSError, ArithmeticError, ImportError) as error:
        code = report(error)
    sys.exit(code)


def report(*errors: object) -> int:
    """Print each error on one line of standard error; return the exit code."""
    for error in errors:
        print("Error:", " ".join(str(error).split()), file=sys.stderr, flush=True)
    return int(bool(errors))


@app.meta.default
def start(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    backend: Literal["jax", "torch", "tensorflow"] | None = None,
) -> int | None:
    """Choose the backend, then run a command.

    Args:
        backend: The backend of Keras. Default: `KERAS_BACKEND`, else an installed one.
    """
    if words[:1] and words[0] in app and words[0].isalpha():
        backends.choose(backend)
        calls = {
            "train": (kv.fit, kv.training.Recipe, kv.data.Augmentation, kv.data.Mixing),
            "evaluate": (kv.evaluate,),
            "explore": (kv.analysis.explore,),
            "export": (kv.export,),
        }
        command = app[words[0]].default_command
        own = inspect.signature(command).parameters
        parameters = [each for each in own.values() if each.kind != each.VAR_KEYWORD]
        for function in calls.get(words[0], ()):
            parameters += [each for each in options_of(function) if each.name not in own]
        command.__signature__ = inspect.Signature(parameters)
    return app(words)


def options_of(function: Callable) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function as options, with the help in its docstring.

    Fields of a class, the settings of a recipe, have no default: others remain the recipe's.
    """
    hints, is_recipe = get_type_hints(function), inspect.isclass(function)
    texts = {each.arg_name: each.description for each in parse_docstring(function.__doc__).params}
    group = "Settings of the recipe" if is_recipe else "Parameters"
    for name, each in inspect.signature(function).parameters.items():
        if name not in HIDDEN and each.kind != each.VAR_KEYWORD:
            default = None if is_recipe else each.default
            kind = shell_type(hints[name]) | None
            kind = Annotated[kind, Parameter(help=texts.get(name), group=group)]
            yield inspect.Parameter(name, each.KEYWORD_ONLY, default=default, annotation=kind)


def shell_type(hint: object) -> Any:
    """Return the type of an option: text for what a shell can't give."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return Union[*map(shell_type, get_args(hint))]
    if origin is Mapping:
        return dict[str, float]
    return hint if origin in SHELL_TYPES else str


def open_model(name: str, weights: str | None = None, **arguments: Any) -> Any:
    """Return a model of a size, by default with weights of a checkpoint, or load it from a file."""
    if name.endswith(".keras") or name.startswith("hf://"):
        import keras

        if weights is not None or arguments:
            raise ValueError(
                f"`--weights` and `--image-size` must be those of a size. Received: {name}."
            )
        return keras.saving.load_model(name)
    if weights is None and (entries := kv.weights.checkpoints_of(name)):
        named = (each.dataset for each in entries if each.dataset == "imagenet")
        weights = next(named, entries[0].name)
    return kv.create_model(name, weights=None if weights == "none" else weights, **arguments)


@app.command
def train(
    model: Model,
    source: Source,
    /,
    *,
    weights: Weights = None,
    image_size: option(int | None, "Side of the images of a size.") = None,
    teacher: option(str | None, "A trained model, whose predictions are labels, too.") = None,
    output: option(Path | None, "Directory of the run. Default: a new one under `runs/`.") = None,
    devices: option(str | None, "Number of devices that share each batch, or `all`.") = None,
    validation_split: option(float, "Fraction of the images to hold out, if none are.") = 0.1,
    fraction: option(float, "Fraction of the training images to use.") = 1.0,
    seed: option(int, "Seed of the weights, the order and the augmentation.") = 0,
    **options: Any,
) -> None:
    """Train or fine-tune a model by a recipe."""
    import keras

    if devices is not None:
        kv.training.use_devices(devices if devices == "all" else int(devices))
    keras.utils.set_random_seed(seed)
    dataset = kv.data.load_dataset(source)
    arguments = {"classes": len(dataset.class_names)} if model in kv.models.MODELS else {}
    if image_size is not None:
        arguments["input_shape"] = (image_size, image_size, 3)
    network = open_model(model, weights or ("none" if arguments else None), **arguments)
    options["teacher"] = teacher and open_model(teacher)
    if kv.training.is_chief():
        runs = (Path("runs", f"{network.name}-{number}") for number in itertools.count(1))
        output = output or next(path for path in runs if not path.exists())
    options = {name: None if value == "none" else value for name, value in options.items()}
    options |= {"validation_split": validation_split, "fraction": fraction}
    kv.fit(network, dataset, output=output, seed=seed, **options)


@app.command
def evaluate(
    model: Model, source: Source, /, *, weights: Weights = None, json: Json = False, **options: Any
) -> None:
    """Measure loss and accuracy of a model on labeled images.

    Of the source of the model's own run, these are the images that the run held out.
    """
    network, run, images = open_model(model, weights), Path(model).with_name("run.json"), source
    own = json_text.loads(run.read_text())["source"] if run.exists() else None
    if own == str(Path(source).resolve()):
        print(f"Measured: the images that {run.parent} held out.", file=sys.stderr)
        images = kv.data.load_dataset(source, validation_split=kv.training.held_out(run.parent))
    results = kv.evaluate(network, images, **options)
    print_json(results) if json else print_table([results])


@app.command
def predict(
    model: Model,
    images: Images,
    /,
    *,
    weights: Weights = None,
    top: option(int, "Number of classes per image.") = 5,
    batch_size: option(int, "Images per batch.") = 32,
    json: Json = False,
) -> int:
    """Print the most probable classes of images."""
    files = files_of(images)
    network = open_model(model, weights)
    predictor = kv.predictor(network, batch_sizes=(batch_size,))
    results, errors = [], {}
    batches = kv.data.batches_of_files(files, network, batch_size)
    bar = {"console": (console := Console(stderr=True)), "disable": not console.is_terminal}
    for batch in track(batches, "", -(-len(files) // batch_size), transient=True, **bar):
        errors |= batch.errors
        probabilities = predictor.probabilities(batch.images) if batch.paths else ()
        for path, row in zip(batch.paths, probabilities, strict=True):
            if not all(map(math.isfinite, row)):
                errors[path] = f"{path}: the outputs of the model are not finite."
                continue
            (best,) = kv.data.decode_predictions(row[None], top, predictor)
            classes = [{"class": name, "probability": float(f"{p:.6g}")} for _, name, p in best]
            results.append({"file": str(path), "classes": classes})
    if json:
        skipped = [{"file": str(path), "error": str(error)} for path, error in errors.items()]
        print_json([*results, *skipped])
    else:
        print_table([{"file": each["file"]} | row for each in results for row in each["classes"]])
    return report_skipped(errors, len(files))


def report_skipped(errors: Mapping[Path, object], count: int) -> int:
    """Print the errors of some of `count` images; return the exit code."""
    if errors:
        print(f"Skipped {len(errors):,} of {count:,} images.", file=sys.stderr)
    return report(*errors.values())


def files_of(images: Iterable[str]) -> list[Path]:
    """Return image files, also those in directories; expand patterns that the shell left."""
    from keras_vitx.data.sources.directories import image_files

    files: list[Path] = []
    for name in map(os.path.expanduser, images):
        found = [] if Path(name).exists() else sorted(glob.glob(name))
        for path in map(Path, found or [name]):
            unread: list[Path] = []  # Of unknown formats, which are reported.
            files += image_files(path, unread) + unread if path.is_dir() else [path]
    if not files:
        raise ValueError(f"there are no images in {', '.join(images)}.")
    return files


@app.command
def explore(
    model: Model, images: Images, /, *, output: File, weights: Weights = None, **options: Any
) -> int:
    """Write an HTML page that shows where a model looks."""
    pictures, errors = {}, {}
    for path in files_of(images):
        try:
            pictures[path] = kv.data.decode_image(path)
        except OSError as error:
            errors[path] = error
    if pictures:
        options |= {"names": [path.name for path in pictures], "path": output}
        page = kv.analysis.explore(open_model(model, weights), list(pictures.values()), **options)
        print(f"Wrote {page}, {page.stat().st_size / 1e6:.1f} MB.")
    return report_skipped(errors, len(pictures) + len(errors))


@app.command
def export(model: Model, path: File, /, *, weights: Weights = None, **options: Any) -> None:
    """Write a file that runs without this package, and check it in its own runtime."""
    exported = kv.export(open_model(model, weights), path, **options)
    print(f"Wrote {path}. Its outputs are within {exported.difference:.1e} of the model's.")


@app.command
def convert(
    weights: option(str, "A weights file, the name of a checkpoint, or `hf://owner/repo`."),
    path: option(Path, "`.keras`, or `.safetensors` with PyTorch's names."),
    /,
    *,
    model: option(str, "The size to which the weights belong (`keras-vitx list`)."),
) -> None:
    """Convert weights between Keras's files and files with PyTorch's names."""
    network = kv.create_model(model, weights=weights)
    write = kv.weights.save_safetensors if path.suffix == ".safetensors" else type(network).save
    write(network, path)
    print(f"Wrote {path}: {network.count_params():,} parameters.")


@app.command(name="list")
def list_names(
    pattern: option(str, 'Such as "CaiT_S*"; or the name of a recipe, to show it.') = "*",
    /,
    *,
    weights: option(bool, "List checkpoints, by their name or size.") = False,
    recipes: option(bool, "List recipes.") = False,
    json: Json = False,
) -> None:
    """List sizes, checkpoints or recipes."""
    if recipes:
        names = kv.training.list_recipes()
        return print(*(names if pattern == "*" else [kv.training.recipes.get(pattern)]), sep="\n")
    rows = [{"name": x, "arguments": kv.models.MODELS[x].data} for x in kv.list_models(pattern)]
    if weights:
        facts = ("name", "constructor", "image_size", "classes", "top1", "license", "source")
        rows = [
            {fact: getattr(entry, fact) for fact in facts}
            for entry in kv.weights.checkpoints_of(None)
            if fnmatch(entry.name, f"*{pattern}*") or fnmatch(entry.constructor, pattern)
        ]
    print_json(rows) if json else print_table(rows)


def print_json(value: object) -> None:
    """Print a value as JSON, which has no NaN."""
    print(json_text.dumps(value, indent=1, allow_nan=False))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with the same keys; in a pipe, nothing is cut or wrapped."""
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    table = Table(*(Column(name, overflow="fold") for name in (rows[0] if rows else ())))
    for row in rows:
        cells = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values())
        table.add_row(*map(Text, cells))
    console.print(table)


if __name__ == "__main__":
    main()
