"""The command line `keras-vitx`, also `python -m keras_vitx.cli`."""

import importlib
import logging
import pkgutil
import sys
from typing import Annotated

import typer

from keras_vitx import __version__, cli

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Plain text, the same in a terminal and in a pipe.
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"keras-vitx {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Vision transformers with modified attention."""


for module in pkgutil.iter_modules(cli.__path__):
    if not module.name.startswith("_"):
        app.command(module.name)(importlib.import_module(f"keras_vitx.cli.{module.name}").main)


def main() -> None:
    """Run the command line; invalid input gives one line of text and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("keras_vitx").setLevel(logging.INFO)
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
