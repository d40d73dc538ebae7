"""Output of the commands: tables, JSON, CSV, files and directories."""

import contextlib
import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import typer

from keras_vitx.files import atomic_write, check_writable
from keras_vitx.text import csv_cell, printable

Rows = Sequence[Mapping[str, Any]]

PIPED_WIDTH = 10_000
"""Width of a table outside a terminal, where no line is wrapped or cut."""


def show(
    rows: Rows,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    group_by: str | None = None,
    formats: Mapping[str, Callable] | None = None,
) -> None:
    """Print rows with the same keys: as a table, JSON or CSV.

    A table prints equal consecutive values of the column `group_by` once; `formats` has functions
    that format its other columns.
    """
    if as_json:
        show_json(rows)
    elif as_csv:
        for row in (rows[0], *(row.values() for row in rows)):
            write_row(row, sys.stdout)
    else:
        _show_table(rows, group_by, formats or {})


def write_row(values: Iterable[Any], file: TextIO) -> None:
    """Write a row of CSV."""
    cells = (words(v) if isinstance(v, (list, tuple)) else v for v in values)
    csv.writer(file, lineterminator="\n").writerow(map(csv_cell, cells))


def show_json(value: Any, file: TextIO | None = None, indent: int | None = 1) -> None:
    """Print a value as JSON in ASCII: names of files may be invalid UTF-8 or move a cursor."""
    typer.echo(json.dumps(value, indent=indent), file)


def say(text: object, *, error: bool = False) -> None:
    """Print text without control characters; errors in red, to standard error."""
    typer.secho(printable(str(text), keep="\n"), fg="red" if error else None, err=error)


def check_form(as_json: bool, as_csv: bool) -> None:
    """Raise a ValueError, before long work, if both output formats are requested."""
    if as_json and as_csv:
        raise ValueError("`--json` and `--csv` are mutually exclusive.")


def words(value: Any) -> str:
    """Return a value as text: None is empty, a list is separated by commas."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    return str(value)


def check_new(output: Path, overwrite: bool) -> None:
    """Check, before long work, that the file of `--output` can be written.

    Raises a ValueError if it exists without `overwrite`, and an OSError if it can't be written.
    """
    if output.is_dir():
        raise IsADirectoryError(f"`--output` {output} is a directory.")
    if output.exists() and not overwrite:
        raise ValueError(f"`--output` {output} already exists. `--overwrite` replaces it.")
    check_writable(output)


@contextlib.contextmanager
def text_file(output: Path | None) -> Iterator[TextIO]:
    """Yield a file to write, which is removed after an error; None is standard output."""
    if output is None:
        yield sys.stdout
        return
    with atomic_write(output) as path, path.open("w", encoding="utf-8", newline="") as file:
        yield file


@contextlib.contextmanager
def progress(total: int, unit: str, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal; yield a function to advance it."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    with bars.Progress(
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn(f"{unit}, {{task.fields[rate]:.1f}} per second,"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("left"),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
        redirect_stdout=False,  # It would be redirected to standard error.
    ) as bar:
        task = bar.add_task("", total=total, rate=0.0)

        def advance(count: int) -> None:
            bar.update(task, advance=count, rate=bar.tasks[task].speed or 0.0)

        yield advance


def new_run(name: str) -> Path:
    """Return a directory under `runs/` that doesn't exist yet."""
    paths = (Path("runs", f"{name}-{number}") for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def check_new_directory(output: Path) -> None:
    """Raise an OSError, before long work, unless `output` is new or empty, and writable."""
    check_writable(output / "file")
    if output.is_dir() and any(output.iterdir()):
        raise FileExistsError(f"`--output` {output} already exists. Give a new directory.")


def _show_table(rows: Rows, group_by: str | None, formats: Mapping[str, Callable]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    table = Table(*(Column(name, overflow="fold") for name in rows[0]))
    group = None
    for row in rows:
        cells = {key: formats.get(key, words)(value) for key, value in row.items()}
        if group_by and group not in (None, row[group_by]):
            table.add_section()
        if group_by and group == row[group_by]:
            cells[group_by] = ""
        group = row.get(group_by)
        # As text, because rich would parse markup in a name.
        table.add_row(*(Text(printable(cell)) for cell in cells.values()))
    console.print(table)
