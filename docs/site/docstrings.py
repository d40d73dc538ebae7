"""An extension of griffe: displayed formulas of docstrings become paragraphs of their own."""

import re

import griffe

FORMULA = re.compile(r"\n*\$\$(.+?)\$\$\n*", re.DOTALL)


class Formulas(griffe.Extension):
    """Put empty lines around `$$...$$`, which Markdown needs and docstrings can do without."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = separated(obj.docstring.value)


def separated(text: str) -> str:
    """Return `text` with empty lines around its displayed formulas."""
    return FORMULA.sub(r"\n\n$$\1$$\n\n", text)
