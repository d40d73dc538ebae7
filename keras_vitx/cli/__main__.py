"""The command line `keras-vitx`, also `python -m keras_vitx.cli`."""

import functools
import importlib.util
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Callable

import typer
from typer import Option

from keras_vitx import __version__, cli
from keras_vitx.cli._output import say
from keras_vitx.text import printable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # The same text in a terminal and in a pipe.
    rich_markup_mode=None,
    # Help uses the whole width of a terminal.
    context_settings={"max_content_width": 140},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"keras-vitx {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Vision transformers with modified attention."""


def _after_keras(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that imports Keras first, without TensorFlow's start-up log.

    That log of native code has no setting, so standard error is closed meanwhile.
    """

    @functools.wraps(command)
    def run(*args, **kwargs):
        stderr = os.dup(2)
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            import keras  # noqa: F401 - on the backend of `--backend`

            # On any backend, Keras imports it to set a seed.
            if name in ("export", "train") and importlib.util.find_spec("tensorflow"):
                import tensorflow  # noqa: F401
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        return command(*args, **kwargs)

    return run


for _, verb, _ in pkgutil.iter_modules(cli.__path__):
    if not verb.startswith("_"):
        module = importlib.import_module(f"keras_vitx.cli.{verb}")
        app.command(verb)(_after_keras(verb, module.main))


def _expand_user(argument: str) -> str:
    """Expand `~` in an argument, also in `--option=~/path`."""
    option, equals, value = argument.partition("=") if argument[:2] == "--" else ("", "", argument)
    return option + equals + (os.path.expanduser(value) if value[:1] == "~" else value)


def _check_values(words: list[str]) -> None:
    """Raise a ValueError for an empty value, which as a path would be the current directory."""
    for before, word in zip(["", *words], words, strict=False):
        if not word or re.fullmatch("--[a-z-]+=", word):
            name = word.rstrip("=") or before
            which = f"`{name}`" if name[:1] == "-" else "An argument"
            raise ValueError(f"{which} must not be empty. Received: ''.")


def main() -> None:
    """Run the command line; invalid input exits with one line of text and code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    # A service may close standard error; the next file that is opened would take its place.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if hasattr(sys.stdout, "reconfigure"):  # Names that its encoding lacks, as under LC_ALL=C.
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    formatter = logging.Formatter()
    handler.format = lambda record: printable(formatter.format(record), keep="\n")
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("keras_vitx").setLevel(logging.INFO)
    try:
        _check_values(sys.argv[1:])
        app(list(map(_expand_user, sys.argv[1:])))
    except (ValueError, OSError, ImportError) as error:
        say(f"Error: {error}", error=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
