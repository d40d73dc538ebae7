"""Output of the commands: tables, JSON and CSV, and folders of runs."""

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

Rows = Sequence[Mapping[str, Any]]

PIPED_WIDTH = 10_000
"""Width of a table that is not printed to a terminal, so that no line is wrapped or cut."""


def show(
    rows: Rows,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    grouped: str | None = None,
    formats: Mapping[str, Callable] | None = None,
) -> None:
    """Print rows with the same keys, by default as a table.

    Args:
        rows: At least one row.
        as_json: Whether to print a JSON array of objects.
        as_csv: Whether to print CSV.
        grouped: A column whose value is printed once per group of successive equal rows.
        formats: Functions that format the values of table columns, by column.

    Raises:
        ValueError: if both JSON and CSV are requested.
    """
    check_form(as_json, as_csv)
    if as_json:
        show_json(rows)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: words(value) for key, value in row.items()} for row in rows)
    else:
        _show_table(rows, grouped, formats or {})


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def check_form(as_json: bool, as_csv: bool) -> None:
    """Check, before long work, that at most one output format is requested.

    Raises:
        ValueError: if both are.
    """
    if as_json and as_csv:
        raise ValueError("`--json` and `--csv` are mutually exclusive.")


def words(value: Any) -> str:
    """Return a value as text: None is empty, a list is separated by commas."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    return str(value)


@contextlib.contextmanager
def progress(total: int, description: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal; yield a function to advance it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


def new_run(name: str) -> Path:
    """Return a folder under `runs/` that doesn't exist yet."""
    number = 1
    while (folder := Path("runs", f"{name}-{number}")).exists():
        number += 1
    return folder


def _show_table(rows: Rows, grouped: str | None, formats: Mapping[str, Callable]) -> None:
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
        if grouped and group not in (None, row[grouped]):
            table.add_section()
        if grouped and group == row[grouped]:
            cells[grouped] = ""
        group = row.get(grouped)
        # As text, because a name may contain what rich parses as markup.
        table.add_row(*map(Text, cells.values()))
    console.print(table)
