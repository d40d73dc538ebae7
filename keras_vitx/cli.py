"""The command line `keras-vitx`, also `python -m keras_vitx.cli`.

A command has the options of the function that it calls, with types, defaults and help from its
signature and docstring. Keras is imported after `--backend` is read.
"""

import inspect
import itertools
import json as json_text
import logging
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter
from cyclopts.validators import Number
from docstring_parser import parse as parse_docstring
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from rich.text import Text

import keras_vitx as kv
from keras_vitx import backend as backends
from keras_vitx.files import own_held_out

HELP = "Vision transformers with modified attention: train, measure, explore and export them."
PLAIN = {"exit_on_error": False, "print_error": False, "result_action": "return_value"}
SHOWN = Parameter(negative=(), consume_multiple=True, show_default=lambda value: value or None)
PLAIN |= {"help_format": "markdown", "version": kv.__version__, "default_parameter": SHOWN}
MAIN, OTHER, SETTINGS = map(Group.create_ordered, ("Main options", "Options", "Recipe"))
app = App("keras-vitx", help=HELP, group_parameters=OTHER, **PLAIN)
# `start` passes them on: the options of a command are known when it is named.
app.meta.help_flags = app.meta.version_flags = ()

SKIP = {"callbacks", "charts", "images", "name", "names", "path", "paths", "perturb", "predictions"}
SHELL_TYPES = (bool, float, str, tuple, NoneType, Literal, Sequence)
FIRST = {"epochs", "batch_size", "learning_rate", "augmentation"}
OPTIONS: set[str] = set()  # The names in Python of those of the command that runs.


class integer(int):
    """A whole number: cyclopts itself rounds 1.9 to 2."""

    def __new__(cls, text: str) -> int:
        return int(text)


def option(kind: Any, text: str, **more: Any) -> Any:
    """Return the type of an option with its help."""
    return Annotated[kind, Parameter(help=text, **more)]


Model = option(str, "A size (`keras-vitx list`), a `.keras` file or `hf://owner/repo`.")
WEIGHTS = "Of a size: a name (`keras-vitx list --weights`), file, `hf://owner/repo` or `none`."
Weights = option(str | None, WEIGHTS)
Source = option(str, "Directories of classes, `.csv`, `.npz`, `tfds:NAME` or `fashion_mnist`.")
Images = option(str, "Image files, and directories; exit code 1 if one can't be read.")
File = option(Path, "The file or directory to write; its suffix is the format.")
Json = option(bool, "Print JSON.")


def main() -> None:
    """Run the command line: an error is one line on standard error, with exit code 1."""
    backends.set_environment()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_vitx").setLevel(logging.INFO)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # It logs each retry twice.
    try:
        code = app.meta(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough: what is left is not written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (KeyboardInterrupt, Exception) as error:
        code = report(str(error) or repr(error))
    sys.exit(code)


def report(*errors: object, of: int = 0) -> int:
    """Print errors, perhaps of some of the images, each on one line; return the exit code."""
    if errors and of:
        print(f"Skipped {len(errors):,} of {of:,} images.", file=sys.stderr)
    for error in errors:
        text = in_shell(" ".join(str(error).split()))
        text = text.replace("dict[str, float]", "weights by name, as in --class-weight.cat 2")
        print("Error:", text, file=sys.stderr, flush=True)
    return int(bool(errors))


def in_shell(text: str) -> str:
    """Return a text on arguments in the words of the command line."""
    text = re.sub(r" \([^()]*`keras_vitx[^()]*\)|,? or an? `[A-Z]\w+`", "", text)
    for name in OPTIONS:
        before = r"\b" if "_" in name else "`"
        text = re.sub(rf"({before}){re.escape(name)}\b", rf"\1--{name.replace('_', '-')}", text)
    return re.sub(r"\bNone\b", "`none`", text).replace(r"$\alpha$", "alpha")


@app.meta.default
def start(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    backend: option(Literal["jax", "torch", "tensorflow"] | None, "That of Keras.") = None,
) -> int | None:
    """Choose the backend, by default `KERAS_BACKEND` or an installed one, then run a command."""
    if words[:1] and words[0] in app and words[0].isalpha():
        backends.choose(backend)
        settings = kv.training.Recipe, kv.data.Augmentation, kv.data.Mixing
        calls = {"train": (kv.fit, *settings), "evaluate": (kv.evaluate,), "export": (kv.export,)}
        calls["predict"] = kv.data.decode_predictions, kv.data.batches_of_files
        calls["explore"] = (kv.analysis.explore,)
        command = app[words[0]].default_command
        own = inspect.signature(command).parameters
        parameters = [each for each in own.values() if each.kind != each.VAR_KEYWORD]
        for function in calls.get(words[0], ()):
            parameters += [each for each in options_of(function) if each.name not in own]
        OPTIONS.update(each.name for each in parameters if each.kind == each.KEYWORD_ONLY)
        command.__signature__ = inspect.Signature(parameters)
    return app(words)


def options_of(function: Callable) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, or of a recipe, as options with their help."""
    hints, is_recipe = get_type_hints(function), inspect.isclass(function)
    texts = {each.arg_name: each.description for each in parse_docstring(function.__doc__).params}
    OPTIONS.update(texts.keys() - {"images", "model", "path", "source"})
    for name, each in inspect.signature(function).parameters.items():
        if name in hints.keys() - SKIP and each.kind != each.VAR_KEYWORD:
            default = None if is_recipe else each.default  # Others remain the recipe's.
            group = (MAIN if name in FIRST else SETTINGS) if is_recipe else OTHER
            kind = shell_type(hints[name]) | None
            limit = Number(gte=min(default, 1)) if hints[name] is int and default else None
            kind = option(kind, in_shell(texts.get(name, "")), group=group, validator=limit)
            yield inspect.Parameter(name, each.KEYWORD_ONLY, default=default, annotation=kind)


def shell_type(hint: object) -> Any:
    """Return the type of an option: text for what a shell can't give."""
    if hint is int:
        return integer
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return Union[*map(shell_type, get_args(hint))]
    if origin in (Mapping, Iterable):
        inner = [shell_type(each) for each in get_args(hint)]
        return dict[str, float] if origin is Mapping else list[Union[*inner]]
    return hint if origin in SHELL_TYPES else str


def open_model(name: str, weights: str | None = None, **arguments: Any) -> Any:
    """Return a model of a size, by default with weights of a checkpoint, or load it from a file."""
    if name.endswith(".keras") or name.startswith("hf://"):
        import keras

        if weights is not None or arguments:
            raise ValueError(f"--weights and --image-size are those of a size. Received: {name}.")
        try:
            if name.endswith(".keras"):
                zipfile.ZipFile(name).close()  # Keras does not find a damaged file.
            return keras.saving.load_model(name)
        except Exception as error:  # Keras raises many types of them.
            raise ValueError(f"{name} can't be read as a model: {error}") from error
    if weights is None and (entries := kv.weights.checkpoints_of(name)):
        weights = next((x.dataset for x in entries if x.dataset == "imagenet"), entries[0].name)
    return kv.create_model(name, weights=None if weights == "none" else weights, **arguments)


@app.command
def train(
    model: Model,
    source: Source,
    /,
    *,
    weights: Weights = None,
    image_size: option(integer | None, "Side of the images.", group=MAIN) = None,
    output: option(Path | None, "Directory of the run; else a new one.", group=MAIN) = None,
    devices: option(integer | Literal["all"] | None, "Number of devices, or `all`.") = None,
    validation_split: option(float, "Fraction of the images to hold out, if none are.") = 0.1,
    fraction: option(float, "Fraction of the training images to use.") = 1.0,
    **options: Any,
) -> int | None:
    """Train or fine-tune a model by a recipe."""
    import keras

    if devices is not None:
        kv.training.use_devices(devices)
    keras.utils.set_random_seed(options.get("seed", 0))
    dataset = kv.data.load_dataset(source)
    arguments = {"classes": len(dataset.class_names)} if model in kv.models.MODELS else {}
    if image_size is not None:
        arguments["input_shape"] = (image_size, image_size, 3)
    network = open_model(model, weights or ("none" if arguments else None), **arguments)
    if "teacher" in options:
        options["teacher"] = open_model(options["teacher"])
    if kv.training.is_chief():
        runs = (Path("runs", f"{network.name}-{number}") for number in itertools.count(1))
        output = output or next(path for path in runs if not path.exists())
    options = {name: None if value == "none" else value for name, value in options.items()}
    options |= {"validation_split": validation_split, "fraction": fraction}
    print("The first step is prepared, once: of CaiT_XXS24 up to 20 seconds on a CPU.", flush=True)
    try:
        kv.fit(network, dataset, output=output, **options)
    except KeyboardInterrupt:
        log = output / "history.csv"
        epochs = len(log.read_text().splitlines()) - 1 if log.exists() else 0
        return report(f"epoch {epochs} is kept; go on with --output {output} --resume.")


@app.command
def evaluate(
    model: Model,
    source: Source,
    /,
    *,
    weights: Weights = None,
    classes: option(Path | None, "Picture of the confusion matrix; prints a row per class.") = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Measure a model on labeled images; of its own run's source, on those held out."""
    dataset = kv.data.load_dataset(source, validation_split=own_held_out(model, source))
    results = kv.evaluate(open_model(model, weights), dataset, predictions=bool(classes), **options)
    if classes is not None:
        kv.analysis.plot_confusion(results, classes)
        whole = {"class": "(all)", "images": results["images"], "accuracy": results["accuracy"]}
        results = [*kv.analysis.classes_of(results, getattr(dataset, results["split"])), whole]
    show(json, results)


@app.command
def predict(
    model: Model, /, *images: Images, weights: Weights = None, json: Json = False, **options: Any
) -> int:
    """Print the most probable classes of images."""
    files, network = files_of(images), open_model(model, weights)
    predictor = kv.predictor(network, batch_sizes=(batch_size := options.pop("batch_size", 32),))
    results, errors = [], {}
    batches = kv.data.batches_of_files(files, network, batch_size)
    bar = {"console": Console(stderr=True), "disable": not sys.stderr.isatty(), "transient": True}
    for batch in track(batches, "", -(-len(files) // batch_size), **bar):
        errors |= batch.errors
        outputs = batch.paths and predictor.probabilities(batch.images)
        best = batch.paths and kv.data.decode_predictions(outputs, model=predictor, **options)
        for path, row in zip(batch.paths, best, strict=True):
            classes = [{"class": name, "probability": float(f"{p:.6g}")} for _, name, p in row]
            results.append({"file": str(path), "classes": classes})
    rows = [{"file": each["file"]} | row for each in results for row in each["classes"]]
    skipped = [{"file": str(path), "error": str(error)} for path, error in errors.items()]
    show(json, [*results, *skipped] if json else rows)
    return report(*errors.values(), of=len(files))


def files_of(images: Iterable[str]) -> list[Path]:
    """Return image files, also those in directories."""
    from keras_vitx.data.sources.directories import image_files

    files: list[Path] = []
    for path in (Path(name).expanduser() for name in images):
        unread: list[Path] = []  # Of unknown formats, which are reported.
        files += image_files(path, unread) + unread if path.is_dir() else [path]
    if not files:
        raise ValueError(f"there are no images in {', '.join(images) or 'the command'}.")
    return files


@app.command
def explore(
    model: Model, /, *images: Images, output: File, weights: Weights = None, **options: Any
) -> None:
    """Write an HTML page that shows where a model looks."""
    files, network = files_of(images), open_model(model, weights)
    options.setdefault("about", ", ".join({model, weights} - {network.size, "none", None}))
    page = kv.analysis.explore(network, files, output, **options)
    print(f"Wrote {page}, {page.stat().st_size / 1e6:.1f} MB.")


@app.command
def export(model: Model, path: File, /, *, weights: Weights = None, **options: Any) -> None:
    """Write a file that runs without this package, and check it in its own runtime."""
    exported = kv.export(open_model(model, weights), path, **options)
    print(f"Wrote {path}. Its outputs are within {exported.difference:.1e} of the model's.")


@app.command
def convert(
    weights: option(str, WEIGHTS), path: File, /, *, model: option(str | None, "Their size.") = None
) -> None:
    """Convert weights between Keras's files and `.safetensors` with PyTorch's names."""
    if model is None and not weights.endswith(".keras"):
        raise ValueError(f"--model must be the size of {weights}: `keras-vitx list` has them.")
    network = kv.create_model(model, weights=weights) if model else open_model(weights)
    write = kv.weights.save_safetensors if path.suffix == ".safetensors" else type(network).save
    write(network, path)
    print(f"Wrote {path}: {network.count_params():,} parameters.")


@app.command(name="list")
def list_names(
    pattern: option(str, 'Such as "CaiT_S*"; or the name of a recipe, to show it.') = "*",
    *,
    weights: option(bool, "List checkpoints, by their name or size.") = False,
    recipes: option(bool, "List recipes.") = False,
    json: Json = False,
) -> None:
    """List sizes, checkpoints or recipes."""
    if recipes and pattern != "*":
        return print(kv.training.recipes.get(pattern))
    if recipes:
        files = kv.training.recipes.FILES
        texts = [path.read_text("utf-8").partition("\n")[0] for path in files.values()]
        rows = [{"recipe": x, "": y[2:]} for x, y in zip(files, texts, strict=True)]
    elif weights:
        facts = ("name", "constructor", "image_size", "classes", "top1", "license", "source")
        rows = [
            {fact: getattr(entry, fact) for fact in facts}
            for entry in kv.weights.checkpoints_of(None)
            if fnmatch(entry.name, f"*{pattern}*") or fnmatch(entry.constructor, pattern)
        ]
    else:
        table = json_text.loads(resources.files(kv.models).joinpath("sizes.json").read_text())
        rows = [row for row in table if row["size"] in kv.list_models(pattern)]
    if not rows:
        raise ValueError(f"nothing matches {pattern!r}: `keras-vitx list` prints all.")
    show(json, rows)


def show(json: bool, found: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print one or several rows as JSON, or as a table, in a pipe neither cut nor wrapped."""
    if json:  # It has no NaN.
        return print(json_text.dumps(found, indent=1, allow_nan=False))
    rows = [found] if isinstance(found, Mapping) else found
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    columns = (Column(name, overflow="fold") for name in (rows[0] if rows else ()))
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        cells = (f"{x:.4g}" if isinstance(x, float) else str(x or "–") for x in row.values())
        table.add_row(*map(Text, cells))
    console.print(table)


if __name__ == "__main__":
    main()
