"""The command line `keras-vitx`, also `python -m keras_vitx.cli`."""

import contextlib
import functools
import importlib.util
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator

import typer
from typer import Option

from keras_vitx import __version__, cli
from keras_vitx.cli._output import say
from keras_vitx.text import printable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Plain text, the same in a terminal and in a pipe.
    rich_markup_mode=None,
    # Help uses the whole width of a terminal.
    context_settings={"max_content_width": 140},
)


def _print_version(wanted: bool) -> None:
    if wanted:
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

    No setting silences that log of native code, so standard error is closed meanwhile.
    """

    @functools.wraps(command)
    def run(*args, **kwargs):
        with _without_native_log():
            import keras  # noqa: F401 - with the backend of `--backend`

            # Keras imports it under any backend, to set a seed.
            if name in ("demo", "export", "train") and importlib.util.find_spec("tensorflow"):
                import tensorflow

                if name == "demo":  # To have no GPU is no error there.
                    tensorflow.config.list_physical_devices()
        return command(*args, **kwargs)

    return run


@contextlib.contextmanager
def _without_native_log() -> Iterator[None]:
    saved = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


for _, verb, _ in pkgutil.iter_modules(cli.__path__):
    if not verb.startswith("_"):
        module = importlib.import_module(f"keras_vitx.cli.{verb}")
        app.command(verb)(_after_keras(verb, module.main))


def _without_tilde(argument: str) -> str:
    """Return an argument with the user's folder for `~`, also in `--option=~/path`."""
    option, equals, value = argument.rpartition("=") if argument[:2] == "--" else ("", "", argument)
    return option + equals + (os.path.expanduser(value) if value[:1] == "~" else value)


def main() -> None:
    """Run the command line; invalid input gives one line of text and exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    handler = logging.StreamHandler()
    plain = logging.Formatter()
    handler.format = lambda record: printable(plain.format(record), keep="\n")
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("keras_vitx").setLevel(logging.INFO)
    try:
        app(list(map(_without_tilde, sys.argv[1:])))
    except (ValueError, OSError, ImportError) as error:
        say(f"Error: {error}", error=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
