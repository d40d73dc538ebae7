"""Markdown tables of results, and the pages that have them."""

import re
from collections.abc import Sequence
from pathlib import Path


def markdown(rows: Sequence[Sequence[object]]) -> str:
    """Return rows, of which the first has the titles, as a table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)


def replace(page: Path, table: str) -> bool:
    """Put a table in the place of that with the same titles; return whether the page has one."""
    pattern = rf"^{re.escape(table.partition(chr(10))[0])}\n(\|.*\n)+"
    text, count = re.subn(pattern, lambda _: f"{table}\n", page.read_text(), flags=re.MULTILINE)
    if count:
        page.write_text(text)
    return bool(count)
