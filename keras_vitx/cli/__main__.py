"""`keras-vitx`, also `python -m keras_vitx.cli`: finds the verbs and runs one."""

import importlib
import logging
import pkgutil
import sys

import typer

from keras_vitx import cli

app = typer.Typer(
    help="Vision transformers with modified attention.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for module in pkgutil.iter_modules(cli.__path__):
    if not module.name.startswith("_"):
        app.command(module.name)(importlib.import_module(f"keras_vitx.cli.{module.name}").main)


def main() -> None:
    """Run the command line; a wrong input is one line of text and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("keras_vitx").setLevel(logging.INFO)
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
