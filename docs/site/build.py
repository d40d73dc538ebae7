"""Build the documentation site.

    python docs/site/build.py [--fast]

Pages are assembled in build/docs, run where they ask for it (not with `--fast`), and made into
site/ by Zensical. `make docs` calls it with KaTeX in build/npm.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pages
import photographs
import running

BUILD, SITE = pages.ROOT / "build", pages.ROOT / "site"
NPM = BUILD / "npm"
SHIM = "https://unpkg.com/iframe-worker/shim"
"""Zensical loads this for the search in pages opened as files; the site has its own copy."""


def main() -> None:
    """Build the site, or stop with an error."""
    started = time.perf_counter()
    fast = "--fast" in sys.argv[1:]
    made = pages.assemble(BUILD / "docs")
    asking = [page for page in made if page.read_text().startswith(running.HEADER)]
    if fast:
        for page in asking:
            page.write_text(page.read_text().removeprefix(running.HEADER))
    else:
        run(asking)
    copy_katex(BUILD / "docs" / "assets")
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--clean", "--strict"], cwd=pages.ROOT, check=True)
    own_shim()
    print(f"{len(made)} pages in {time.perf_counter() - started:.0f} s: {SITE / 'index.html'}")


def run(waiting: list[Path]) -> None:
    """Run pages side by side, each in a process of its own with one thread.

    Their networks are small: more threads would only wait for each other.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    pictures = BUILD / "docs" / "photographs"
    photographs.copy(pictures)
    spawn = get_context("spawn")
    with ProcessPoolExecutor(None, spawn, running.quiet, max_tasks_per_child=1) as pool:
        futures = [
            pool.submit(running.run, page, BUILD / "run" / page.stem, pictures) for page in waiting
        ]
        for future in futures:
            print("ran", future.result(), flush=True)


def copy_katex(assets: Path) -> None:
    """Copy what pages need of KaTeX: one format of its fonts is enough."""
    source, target = NPM / "katex" / "dist", assets / "katex"
    shutil.copytree(
        source / "fonts", target / "fonts", ignore=shutil.ignore_patterns("*.[to]tf", "*.woff")
    )
    for file in ("katex.min.js", "katex.min.css", "contrib/auto-render.min.js"):
        shutil.copy(source / file, target)
    shutil.copy(NPM / "iframe-worker" / "shim" / "index.js", assets / "iframe-worker.js")


def own_shim() -> None:
    """Replace the address of the shim by the path of the copy, in all pages."""
    for page in SITE.rglob("*.html"):
        up = "../" * (len(page.relative_to(SITE).parts) - 1)
        page.write_text(page.read_text().replace(SHIM, f"{up}assets/iframe-worker.js"))


if __name__ == "__main__":
    main()
