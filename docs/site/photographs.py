"""Photographs of scikit-image, which the blocks of pages read."""

import shutil
from importlib.util import find_spec
from pathlib import Path

NAMES = {"cat.png": "chelsea.png", "coffee.png": "coffee.png", "rocket.jpg": "rocket.jpg"}
"""Names of the photographs, and those that scikit-image gives them."""


def copy(directory: Path) -> None:
    """Copy the photographs to a directory, which is made; scikit-image need not be importable."""
    source = Path(find_spec("skimage").origin).parent / "data"
    directory.mkdir(parents=True, exist_ok=True)
    for name, original in NAMES.items():
        shutil.copy(source / original, directory / name)


def named_in(text: str) -> list[str]:
    """Return the names of the photographs that a page reads."""
    return [name for name in NAMES if name in text]


def code_for(names: list[str]) -> str:
    """Return the code that copies photographs to the working directory, for notebooks."""
    chosen = {name: NAMES[name] for name in names}
    return f"""\
# Photographs, from scikit-image: pip install scikit-image
import shutil
from importlib.util import find_spec
from pathlib import Path

for name, original in {chosen}.items():
    shutil.copy(Path(find_spec("skimage").origin).parent / "data" / original, name)
"""
