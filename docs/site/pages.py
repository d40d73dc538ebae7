"""The pages of the site, assembled from docs/ and from Markdown elsewhere in the repository."""

import functools
import os
import re
import shutil
from pathlib import Path, PurePosixPath

import names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "findings/README.md": "findings.md",
    "weights/README.md": "checkpoints.md",
}
"""Pages from outside of docs/, by their paths."""
UNSEARCHED = {Path("changelog.md"): "---\nsearch:\n  exclude: true\n---\n"}
"""What begins a page whose names, of what went, are no answers of the search."""

BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
MENTION = re.compile(r"(?<![\[(/\w])`?docs/([\w/-]+)\.md`?")
NAME = re.compile(r"^::: (\S+)$", re.MULTILINE)
INSERTED = re.compile(r"^<!-- (\w+): (\w+) -->$", re.MULTILINE)


def assemble(target: Path) -> list[Path]:
    """Write the Markdown of all pages to `target`, with their images.

    Returns:
        The pages.
    """
    shutil.rmtree(target, ignore_errors=True)
    sources = {p.relative_to(ROOT): p.relative_to(DOCS) for p in sorted(DOCS.rglob("*.md"))}
    sources |= {Path(source): Path(page) for source, page in ELSEWHERE.items()}
    for image in DOCS.rglob("*.png"):
        copy(image, target / image.relative_to(DOCS))
    shutil.copytree(DOCS / "site" / "assets", target / "assets")
    for source, page in sources.items():
        text = (ROOT / source).read_text()
        text = INSERTED.sub(lambda match: names.inserted(*match.groups()), text)
        text = outside_blocks(functools.partial(linked, source, page, target), text)
        text = NAME.sub(lambda match: names.documented(match[1]) + "\n", text)
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text(UNSEARCHED.get(page, "") + text)
    return [target / page for page in sources.values()]


def linked(source: Path, page: Path, target: Path, text: str) -> str:
    """Return the text of a page with its links to files changed to those of the site.

    Args:
        source: Path of the page in the repository.
        page: Path of the page in the site.
        target: Directory of the site's pages, to which linked files are copied.
        text: A part of the page outside of its code blocks.
    """

    def link(match: re.Match) -> str:
        found = Path(os.path.normpath(source.parent / match[2]))
        if not (ROOT / found).exists():
            raise FileNotFoundError(f"{source} links to {match[2]}, which does not exist.")
        place = ELSEWHERE.get(found.as_posix())
        if place is None and found.is_relative_to("docs"):
            place = found.relative_to("docs")
        if place is None:
            place = Path("files") / found
            copy(ROOT / found, target / place)
        return f"{match[1]}{towards(page, place)}{match[3]}"

    def mention(match: re.Match) -> str:
        place = f"{match[1]}.md"
        title = (DOCS / place).read_text().partition("# ")[2].partition("\n")[0]
        return f"[{title}]({towards(page, place)})"

    return MENTION.sub(mention, LINK.sub(link, text))


def towards(page: Path, place: Path | str) -> str:
    """Return the link from one page to another."""
    return PurePosixPath(os.path.relpath(place, page.parent)).as_posix()


def outside_blocks(change, text: str) -> str:
    """Return `text` with `change` applied to all of it but the code blocks."""
    blocks = BLOCK.findall(text)
    parts = [change(part) for part in BLOCK.split(text)]
    return "".join(part + block for part, block in zip(parts, [*blocks, ""], strict=True))


def copy(source: Path, target: Path) -> None:
    """Copy a file and make its directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
