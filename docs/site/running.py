"""Pages that are run: their Python blocks, and what these print, return and draw.

A page that begins with `run: true` between two lines `---` is run from top to bottom, in a
folder of its own. What a block prints, and the value of its last line, follow the block;
the path of a picture is followed by the picture. The same cells are written as a notebook.
"""

import ast
import contextlib
import io
import json
import logging
import os
import re
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HEADER = "---\nrun: true\n---\n"
CELL = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
PHOTOGRAPHS = {"cat.png": "chelsea.png", "coffee.png": "coffee.png", "rocket.jpg": "rocket.jpg"}
"""Photographs for the pages, and their names in scikit-image."""


def run(page: Path, folder: Path) -> None:
    """Run a page, and write it again with its outputs, and a notebook beside it.

    Args:
        page: A Markdown file.
        folder: A folder for what the blocks write; it is made, or emptied.
    """
    started = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    photographs(folder)
    text = page.read_text().removeprefix(HEADER)
    parts, cells, names = [], [], {"__name__": "__main__"}
    position = 0
    with contextlib.chdir(folder):
        for match in CELL.finditer(text):
            parts.append(text[position : match.end()])
            cells.append(markdown_cell(text[position : match.start()]))
            position = match.end()
            try:
                printed, value = run_cell(match[1], names, f"{page.name}, block {len(cells)}")
            except Exception:
                print(f"{page}: this block failed:\n{match[1]}", file=sys.stderr)
                raise
            cells.append(code_cell(match[1], printed))
            parts.append(outputs(page, folder, printed, value))
    cells.append(markdown_cell(text[position:]))
    notebook = page.with_suffix(".ipynb")
    notebook.write_text(json.dumps(as_notebook(cells), indent=1))
    parts.append(text[position:])
    parts.append(f"\n[Download this page as a notebook]({notebook.name}){{ .notebook download }}\n")
    page.write_text("".join(parts))
    print(f"ran {page.name} in {time.perf_counter() - started:.1f} s")


def run_cell(code: str, names: dict, label: str) -> tuple[str, object]:
    """Run one block, and return what it printed and the value of its last line.

    Args:
        code: The block.
        names: The variables of the blocks before, which are changed.
        label: Name of the block in tracebacks.
    """
    statements = ast.parse(code).body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), label, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), label, "eval"), names)
    return printed.getvalue(), value


def outputs(page: Path, folder: Path, printed: str, value: object) -> str:
    """Return the Markdown of what a block printed and of its value; pictures are copied."""
    shown = []
    picture = value if isinstance(value, Path) and value.suffix in (".png", ".svg") else None
    if value is not None and picture is None:
        printed += repr(value)
    if printed.strip():
        shown.append(f"```{{.text .output}}\n{printed.rstrip()}\n```\n")
    if picture is not None:
        copied = page.with_name(f"{page.stem}-{picture.name}")
        shutil.copy(folder / picture, copied)
        shown.append(f"![{picture.stem.replace('-', ' ')}]({copied.name})\n")
    return "".join(f"\n{one}" for one in shown)


def photographs(folder: Path) -> None:
    """Copy photographs of scikit-image, which needs not be imported."""
    source = Path(find_spec("skimage").origin).parent / "data"
    for name, original in PHOTOGRAPHS.items():
        shutil.copy(source / original, folder / name)


def markdown_cell(text: str) -> dict:
    """Return a cell of text, in the format of notebooks."""
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip()}


def code_cell(code: str, printed: str) -> dict:
    """Return a cell of code, in the format of notebooks."""
    output = {"output_type": "stream", "name": "stdout", "text": printed}
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [output] if printed else [],
        "source": code.rstrip(),
    }


def as_notebook(cells: list[dict]) -> dict:
    """Return a notebook of these cells, without empty ones."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    kept = [cell for cell in cells if cell["source"]]
    return {"cells": kept, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


def quiet() -> None:
    """Leave progress bars and information out of the outputs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("keras_vitx").setLevel(logging.WARNING)
