"""Notebooks of the pages that are run, with their outputs."""

import ast
import base64
import json
import re
from pathlib import Path

PAGE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)(\{[^}]*\})?")
DISPLAY = "IPython.display"


def written(cells: list[dict]) -> str:
    """Return a notebook of these cells, without empty ones, with its code cells numbered."""
    kept = [cell for cell in cells if cell["source"]]
    code = [cell for cell in kept if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        cell["execution_count"] = number
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": kept, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(notebook, indent=1)


def text_cell(text: str) -> dict:
    """Return a cell of text; links to other pages, which a notebook lacks, are left out."""
    source = PAGE_LINK.sub(r"\1", text).strip()
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code_cell(code: str, printed: str = "", value: object = None) -> dict:
    """Return a cell of code, with what it printed and the value of its last line.

    Where that is the path of a picture, the cell holds the picture, and its last line is
    changed so that it shows it again when the notebook is run.
    """
    outputs = []
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed})
    if is_picture(value):
        code = shows_picture(code)
        picture = base64.b64encode(value.read_bytes()).decode()
        data = {"image/png": picture, "text/plain": f"<picture {value.name}>"}
        outputs.append({"output_type": "execute_result", "metadata": {}, "data": data})
    elif value is not None:
        data = {"text/plain": repr(value)}
        outputs.append({"output_type": "execute_result", "metadata": {}, "data": data})
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": outputs,
        "source": code.rstrip(),
    }


def is_picture(value: object) -> bool:
    """Return whether a value is the path of a picture."""
    return isinstance(value, Path) and value.suffix == ".png"


def shows_picture(code: str) -> str:
    """Return the code with its last expression, the path of a picture, shown as a picture."""
    last = ast.parse(code).body[-1]
    lines = code.rstrip().splitlines()
    expression = "\n".join(lines[last.lineno - 1 :])
    before = "\n".join(["import IPython.display", *lines[: last.lineno - 1]])
    return f"{before}\nIPython.display.Image({expression})"
