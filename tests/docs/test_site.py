"""The pages agree with the package: public names, arguments, links, names in texts."""

import ast
import base64
import dataclasses
import importlib
import inspect
import json
import os
import re
import sys
import types
from pathlib import Path

import pytest
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "site"))
public = importlib.import_module("public")
found = public.find
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "weights" / "README.md"]
each_text = pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.relative_to(ROOT).as_posix())
CODE = re.compile(r"^```(.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PUBLIC = [name for module in public.MODULES for name in public.names_of(module)]


def test_the_reference_has_every_public_name_once():
    written = [name for page in PAGES for name in re.findall("^::: (.+)$", page.read_text(), re.M)]
    modules = set(written) & set(public.MODULES)
    names = [name for module in modules for name in public.documented_in(module)]
    names += [name for name in written if name not in modules]
    documented = [id(found(name)) for name in names]
    missing = [name for name in PUBLIC if id(found(name)) not in documented]
    assert not missing, f"add `::: NAME` to a page of docs/families or docs/reference: {missing}"
    assert len(set(documented)) == len(documented)


def with_docstrings():
    """Public functions and classes, and the methods of these that have a docstring."""
    for name in PUBLIC:
        if callable(found(name)):
            yield name
        for method, value in vars(found(name)).items() if inspect.isclass(found(name)) else ():
            if inspect.isfunction(value) and not method.startswith("_") and value.__doc__:
                yield f"{name}.{method}"


@pytest.mark.parametrize("name", list(with_docstrings()))
def test_documented_arguments_are_those_of_the_signature(name):
    value = found(name)
    docstring = inspect.getdoc(value)
    assert docstring, f"{name} has no docstring"
    fields = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
    title = "Attributes" if fields else "Args"
    section = re.search(rf"^{title}:\n((?: +.*\n|\n)*)", docstring + "\n", re.MULTILINE)
    if section is None:
        return
    groups = re.findall(r"^    (\S[^:]*): ?", section[1], re.MULTILINE)
    documented = [one.lstrip("*") for group in groups for one in group.split(", ")]
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    taken = {one: p for one, p in inspect.signature(value).parameters.items() if one != "self"}
    required = [one for one, parameter in taken.items() if parameter.kind not in kinds]
    if "kwargs" in documented:
        # A subclass that says whose arguments the others are.
        documented, required = documented[:-1], []
    assert [one for one in required if one not in documented] == []
    assert documented == [one for one in taken if one in documented], "unknown, or another order"


def anchor_of(title):
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-")


@each_text
def test_links_lead_to_files_and_titles(page):
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", CODE.sub("", page.read_text()))
    for target, anchor in links:
        if re.match(r"[a-z]+:", target):
            continue
        path = Path(os.path.normpath(page.parent / target)) if target else page
        assert path.exists(), f"{target} does not exist"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in map(anchor_of, titles), f"{target} has no title #{anchor}"


def test_pages_import_the_package_before_keras():
    """It chooses the backend that is installed; Keras alone takes TensorFlow."""
    for page in PAGES:
        for _, cell in CODE.findall(page.read_text()):
            names = re.findall(r"^(?:import|from) (keras\w*)", cell, re.MULTILINE)
            assert "keras_vitx" not in names[1:] or names[0] == "keras_vitx", (page, cell)


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    own = [page.relative_to(DOCS).as_posix() for page in PAGES]
    others = ["changelog.md", "contributing.md", "checkpoints.md", "findings.md"]
    assert sorted(listed) == sorted([*own, *others])


@each_text
def test_names_in_texts_exist(page):
    """Names such as `kv.fit`."""
    # `My...` is the reader's own.
    for path in re.findall(r"\bkv\.((?!My)[A-Za-z]\w*(?:\.[A-Za-z]\w*)*)", page.read_text()):
        value = kv
        for name in path.split("."):
            if not isinstance(value, types.ModuleType | type):
                break
            assert hasattr(value, name), f"kv.{path}"
            value = getattr(value, name)


@pytest.fixture
def running():
    return importlib.import_module("running")


def test_a_page_is_run_and_becomes_a_notebook(tmp_path, running):
    pictures, page = tmp_path / "photographs", tmp_path / "guides" / "page.md"
    pictures.mkdir()
    page.parent.mkdir()
    Image.new("RGB", (4, 4), "red").save(pictures / "cat.png")
    page.write_text(
        f"{running.HEADER}# Title\n\nSee [another](other.md).\n\n"
        "```python\nprint(1 + 1)\n3 * 3\n```\n\n"
        "```python\nfrom pathlib import Path\n\nPath(\n    'cat.png'\n)\n```\n"
    )
    running.run(page, tmp_path / "run", pictures)

    written = page.read_text()
    assert "```{.text .output}\n2\n9\n```" in written
    assert "![cat](page-cat.png)" in written and (page.parent / "page-cat.png").exists()
    assert "[cat.png](../photographs/cat.png)" in written
    text, setup, *cells = json.loads((page.parent / "page.ipynb").read_text())["cells"]
    assert text["source"] == "# Title\n\nSee another." and "chelsea.png" in setup["source"]
    assert [cell["execution_count"] for cell in (setup, *cells)] == [1, 2, 3]
    (printed, value), (shown,) = (cell["outputs"] for cell in cells)
    assert (printed["text"], value["data"]) == ("2\n", {"text/plain": "9"})
    assert base64.b64decode(shown["data"]["image/png"]) == (pictures / "cat.png").read_bytes()
    # The cell shows the picture when it is run in Jupyter, too.
    ends = ast.parse(cells[1]["source"]).body[-1]
    assert ast.unparse(ends) == "IPython.display.Image(Path('cat.png'))"


def test_a_page_that_fails_is_named(tmp_path, running):
    (tmp_path / "page.md").write_text(f"{running.HEADER}```python\n1 / 0\n```\n")
    with pytest.raises(RuntimeError, match=r"page\.md: this block failed:\n1 / 0"):
        running.run(tmp_path / "page.md", tmp_path / "run", tmp_path)
