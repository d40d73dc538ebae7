"""Each part of the package has a budget of lines, which CONTRIBUTING.md states."""

import re

import pytest
from harness import ROOT

pytestmark = pytest.mark.backend_free
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BUDGETS = {
    name: int(lines.replace(",", ""))
    for name, lines in re.findall(r"^ +\| `([\w.]+)/?` \| ([\d,]+) \|", TEXT, re.MULTILINE)
}
TOTAL = int(re.search(r"together at most ([\d,]+)", TEXT)[1].replace(",", ""))


def lines_of(*paths):
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_every_part_has_a_budget():
    parts = {path.name for path in (ROOT / "keras_vitx").iterdir() if path.is_dir()}
    assert parts - {"__pycache__"} == BUDGETS.keys() - {"cli.py", "modules"}


@pytest.mark.parametrize("part", BUDGETS)
def test_a_part_is_within_its_budget(part):
    package = ROOT / "keras_vitx"
    files = {
        "cli.py": [package / "cli.py"],
        "modules": [path for path in package.glob("*.py") if path.name != "cli.py"],
    }
    assert lines_of(*files.get(part, (package / part).rglob("*.py"))) <= BUDGETS[part]


def test_the_package_is_within_its_budget():
    assert lines_of(*(ROOT / "keras_vitx").rglob("*.py")) <= TOTAL
