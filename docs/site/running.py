"""Pages that are run: their Python blocks, and what these print, return and draw.

A page that begins with `run: true` between two lines `---` is run from top to bottom, in a
directory of its own. What a block prints, and the value of its last line, follow the block;
the path of a picture is followed by the picture. The same cells are written as a notebook.
"""

import ast
import contextlib
import io
import logging
import os
import re
import shutil
import time
from pathlib import Path

import notebooks
import photographs

HEADER = "---\nrun: true\n---\n"
CELL = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def run(page: Path, directory: Path, pictures: Path) -> str:
    """Run a page, and write it again with its outputs, and a notebook beside it.

    Args:
        page: A Markdown file.
        directory: A directory for what the blocks write; it is made, or emptied.
        pictures: The directory of the site that has the photographs.

    Returns:
        The name of the page and the seconds that it took.

    Raises:
        RuntimeError: if a block fails.
    """
    started = time.perf_counter()
    text = page.read_text().removeprefix(HEADER)
    used = photographs.named_in(text)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name in used:
        shutil.copy(pictures / name, directory)
    parts, cells, names, position = [], [], {"__name__": "__main__"}, 0
    with contextlib.chdir(directory):
        for number, match in enumerate(CELL.finditer(text), 1):
            parts.append(text[position : match.end()])
            cells.append(notebooks.text_cell(text[position : match.start()]))
            position = match.end()
            if used and number == 1:
                cells.append(notebooks.code_cell(photographs.code_for(used)))
            try:
                printed, value = run_cell(match[1], names, f"{page.name}, block {number}")
            except Exception as error:
                raise RuntimeError(f"{page}: this block failed:\n{match[1]}") from error
            cells.append(notebooks.code_cell(match[1], printed, value))
            parts.append(outputs(page, printed, value))
    parts.append(text[position:])
    cells.append(notebooks.text_cell(text[position:]))
    notebook = page.with_suffix(".ipynb")
    notebook.write_text(notebooks.written(cells))
    # From a file, browsers show what a click on it would download from a server.
    parts.append(
        f"\n[Download this page as a notebook]({notebook.name}){{ .notebook download }} "
        "(where the site is opened as files: save the link).\n"
    )
    if used:
        directory_link = os.path.relpath(pictures, page.parent)
        links = [f"[{name}]({directory_link}/{name}){{ download }}" for name in used]
        parts.append(f"\nThe photographs are those of scikit-image: {', '.join(links)}.\n")
    page.write_text("".join(parts))
    return f"{page.name} in {time.perf_counter() - started:.1f} s"


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


def outputs(page: Path, printed: str, value: object) -> str:
    """Return the Markdown of what a block printed and of its value; pictures are copied."""
    shown = []
    if value is not None and not notebooks.is_picture(value):
        printed += repr(value)
    if printed.strip():
        shown.append(f"```{{.text .output}}\n{printed.rstrip()}\n```\n")
    if notebooks.is_picture(value):
        copied = page.with_name(f"{page.stem}-{value.name}")
        shutil.copy(value, copied)
        shown.append(f"![{value.stem.replace('-', ' ')}]({copied.name})\n")
    return "".join(f"\n{one}" for one in shown)


def quiet() -> None:
    """Leave progress bars and information out of the outputs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("keras_vitx").setLevel(logging.WARNING)
