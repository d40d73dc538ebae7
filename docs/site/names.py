"""Public names in pages: `::: keras_vitx.CaiT` becomes its reference; so do modules."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import griffe
from docstrings import separated
from public import MODULES, documented_in, find

import keras_vitx as kv

SIZES = Path(__file__).parents[1] / "sizes.md"
EXAMPLES = Path(__file__).parents[2] / "examples"


def documented(path: str) -> str:
    """Return the Markdown that documents the public name `path`.

    Families are made by a decorator, which their source does not show; they are described as
    Python has them. For the others, mkdocstrings reads the source.
    """
    if path in MODULES:
        return reference(path)
    found = find(path)
    if found in kv.models.build.FAMILIES.values():
        return family(found)
    place = path
    if inspect.isroutine(found) or inspect.isclass(found):
        # A function such as `fit` may have the name of its module.
        place = f"{found.__module__}.{found.__qualname__}"
    heading = f"`{path}`".replace("keras_vitx.", "kv.", 1).strip("`")
    label = path.rpartition(".")[2]
    return f"::: {place}\n    options:\n      heading: {heading}\n      toc_label: {label}"


def reference(module: str) -> str:
    """Return the reference of a module: a section per file, titled as its docstring begins."""
    sections = {}
    for path in documented_in(module):
        found = find(path)
        is_defined = inspect.isroutine(found) or inspect.isclass(found)
        file = sys.modules[found.__module__ if is_defined else module]
        title = re.split(r"[.:](?: |$)", inspect.getdoc(file).partition("\n")[0])[0]
        sections.setdefault(title, []).append(documented(path))
    return "\n\n".join(f"## {title}\n\n" + "\n\n".join(each) for title, each in sections.items())


def family(constructor: Callable) -> str:
    """Return the signature, the description and the arguments of a family."""
    name = constructor.__name__
    parameters = [f"    {written(one)}," for one in signature(constructor)]
    # Not "python", which is run.
    lines = [f"### kv.{name} {{ #keras_vitx.{name} }}", "", "```py"]
    lines += [f"kv.{name}(", *parameters, ") -> keras.Model", "```", ""]
    docstring = griffe.Docstring(separated(inspect.getdoc(constructor)), lineno=1)
    for section in docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            lines += [section.value, ""]
        elif section.kind is griffe.DocstringSectionKind.parameters:
            lines += ["**Parameters:**", ""]
            lines += [f"- **`{one.name}`** – {joined(one.description)}" for one in section.value]
            lines += [""]
    return "\n".join(lines)


def signature(constructor: Callable) -> list[inspect.Parameter | str]:
    """Return the parameters, with a `*` before those that are keywords only."""
    parameters = list(inspect.signature(constructor).parameters.values())
    keywords = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    others = [one for one in parameters if one not in keywords]
    return [*others, "*", *keywords] if keywords else others


def written(parameter: inspect.Parameter | str) -> str:
    """Return a parameter with its default; types are left to the descriptions."""
    if isinstance(parameter, str):
        return parameter
    default = parameter.default
    return parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"


def joined(text: str) -> str:
    """Return a description in one line."""
    return " ".join(text.split())


def inserted(what: str, name: str) -> str:
    """Return what a page has in place of `<!-- what: name -->`."""
    return {"sizes": sizes, "checkpoints": checkpoints, "examples": examples}[what](name)


def examples(directory: str) -> str:
    """Return the files of a directory of examples as sections, titled as their docstrings begin."""
    texts = [path.read_text() for path in sorted((EXAMPLES / directory).glob("*.py"))]
    titles = [text.partition(":")[0].strip('"') for text in texts]
    sections = zip(titles, texts, strict=True)
    return "\n\n".join(f"## {title}\n\n```python\n{text}```" for title, text in sections)


def sizes(title: str) -> str:
    """Return the section of docs/sizes.md whose title begins with a word."""
    found = re.search(rf"^## {title}\b.*?\n\n(.*?)(?=\n## |\Z)", SIZES.read_text(), re.M | re.S)
    # The pages of families are in a directory beside docs/sizes.md.
    return found[1].replace("](../", "](../../").strip()


def checkpoints(family: str) -> str:
    """Return a table of the checkpoints of a family's sizes; `keras-vitx list` shows all others."""
    titles = "| `weights=` | model | image size | top-1 (%), by timm or else the authors | from |"
    lines = [titles, "|---|---|---|---|---|"]
    for one in kv.weights.checkpoints_of(None):
        size = kv.models.MODELS.get(one.constructor)  # None: of a network of timm's sizes.
        if size is not None and size.family == family:
            top1 = "–" if one.top1 is None else f"{one.top1:.1f}"
            row = f"`{one.name}`", one.constructor, one.image_size, top1, origin(one.source)
            lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)


def origin(source: str) -> str:
    """Return where a checkpoint is from, with a link if it is on the web."""
    scheme, _, rest = source.partition(":")
    if scheme in ("http", "https"):
        return f"[{rest.strip('/').partition('/')[0]}]({source})"
    return "this package" if scheme == "package" else source
