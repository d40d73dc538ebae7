"""What verbs write: tables for people, JSON and CSV for programs, folders of runs."""

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
"""Columns of a table that isn't on a terminal: nothing is wrapped or cut."""


def show(
    rows: Rows,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    grouped: str | None = None,
    formats: Mapping[str, Callable] | None = None,
) -> None:
    """Print rows with the same keys, as a table unless told otherwise.

    Args:
        rows: At least one.
        as_json: Whether to print a JSON array of objects.
        as_csv: Whether to print CSV.
        grouped: The column that is printed once for successive rows in which it is equal.
        formats: How the table prints the values of a column.

    Raises:
        ValueError: when both JSON and CSV are asked for.
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
    """Check, before long work, that one form of output is asked for.

    Raises:
        ValueError: when both are.
    """
    if as_json and as_csv:
        raise ValueError("`--json` and `--csv` exclude each other.")


def words(value: Any) -> str:
    """Return a value as a person writes it: nothing for None, a list with commas."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    return str(value)


@contextlib.contextmanager
def progress(total: int, description: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar while standard error is a terminal; give what advances it."""
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
        # As text, since a name may hold what rich takes for markup.
        table.add_row(*map(Text, cells.values()))
    console.print(table)
