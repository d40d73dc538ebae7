"""Numbers of README and docs, each beside the command that gives it; prints those that differ.

    make numbers                       # those that take less than a minute together, as in CI
    make numbers CIFAR10=cifar10.npz   # and accuracies, the demo and the quick speed race: an hour

`cifar10.npz` has `x_test` and `y_test`. The pages of `WRITTEN` are written, or their numbers
printed, by the commands beside them, which need days or devices: they are listed, not run.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import exact_claims
from sizes import count, counted, gmacs

import keras_vitx as kv
from keras_vitx.weights import checkpoints_of

ROOT = Path(__file__).parents[1]

WRITTEN = {
    "docs/ablations.md": "pytest tests/test_docs.py: parameters of its calls",
    "docs/claims.md": "python benchmarks/exact_claims.py; its runs are those of a commit",
    "docs/data.md": "python benchmarks/pipeline.py",
    "docs/devices.md": "a program of a commit, which the page names",
    "docs/accelerators.md": "python benchmarks/accelerator.py, compile_ahead.py",
    "docs/export.md": "python benchmarks/export.py",
    "docs/real-network.md": "a program of a commit, which the page names",
    "docs/speed.md": "python benchmarks/speed.py --write, first_step.py",
}
CHECKPOINTS = {one.name: one for one in checkpoints_of(None)}


@dataclass(frozen=True)
class Stated:
    """Numbers on a page, where `text` matches: `names` groups, and then numbers.

    `give` returns the numbers for the names; each may differ by a share of `within`.
    """

    page: str
    text: str
    give: Callable[..., tuple[str, ...]]
    names: int = 0
    within: float = 0.0

    def differing(self, sizes: Collection[str] = kv.models.MODELS) -> Iterator[str]:
        """Yield a line for each number that differs; of docs/sizes.md, only for these sizes."""
        found = list(re.finditer(self.text, (ROOT / self.page).read_text(), re.MULTILINE))
        if not found:
            yield f"{self.page}: nothing is like {self.text}"
        for groups in map(re.Match.groups, found):
            names, numbers = groups[: self.names], groups[self.names :]
            if self.page == SIZES and names[0] not in sizes:
                continue
            for old, new in zip(numbers, self.give(*names), strict=True):
                is_near = self.within and abs(float(new) / float(old) - 1) <= self.within
                if old != new and not is_near:
                    yield f"{self.page}: {' '.join(names)} {old}, is {new}"


def macs(name: str, **arguments) -> tuple[str]:
    return (gmacs(name, **arguments),)


def without_maps(name: str) -> tuple[str]:
    """GMACs without the products of queries, keys and maps."""
    data, patches = kv.models.MODELS[name].data, 14 * 14
    before = 10 if name.startswith("ConViT") else 0  # Blocks before the class token.
    pairs = before * patches**2 + (data["depth"] - before) * (patches + 1) ** 2
    return (f"{(counted(name)[1] - 2 * pairs * data['dim']) / 1e9:.2f}",)


def in_readme(name: str, cell: str) -> tuple[str, ...]:
    """Millions of parameters, GMACs, and top-1 of the checkpoint that the last cell begins with."""
    top1 = CHECKPOINTS[cell.split("`")[1]].top1 if cell.startswith("`") else None
    return f"{count(name) / 1e6:.1f}", *macs(name), f"{top1:.1f}" if top1 else "–"


def known() -> tuple[str, ...]:
    """Known checkpoints: all, on the hub, in the package, on their authors' drives."""
    kinds = [one.source.partition(":")[0] for one in CHECKPOINTS.values()]
    return str(len(kinds)), *(str(kinds.count(kind)) for kind in ("hf", "package", "https"))


def of_catalog(checkpoint: str) -> tuple[str, ...]:
    """Parameters and top-1 of a shipped network."""
    one = CHECKPOINTS[checkpoint]
    return f"{count(one.constructor):,}", f"{one.top1:.2f}"


def accuracies(path: str, checkpoint: str) -> tuple[str, ...]:
    """Top-1, top-5 and loss of a shipped network on the test images of CIFAR-10."""
    model = kv.create_model(CHECKPOINTS[checkpoint].constructor, weights=checkpoint)
    found = kv.evaluate(model, path, "test", batch_size=500)
    top1, top5 = (f"{100 * found[metric]:.2f}" for metric in ("accuracy", "top_5_accuracy"))
    return top1, top5, f"{found['loss']:.3f}"


def additional() -> tuple[str, ...]:
    """Parameters and operations of an attention minus an MLP, in millions."""
    return tuple(f"{each:+.3f}" for each in exact_claims.additional_layers())


def speeds(mode: str) -> tuple[str, str]:
    """Least and largest speed-up over timm, with the same allocator, in the table of `speed.py`."""
    page = (ROOT / "docs" / "speed.md").read_text()
    table = re.search(r"^\| model \| peer \|.*\n(?:\|.*\n)+", page, re.MULTILINE)[0]
    titles, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    column = titles.index(f"{mode}, PyTorch, kept memory")
    found = [row[column] for row in rows if "timm" in row]
    return min(found, key=float), max(found, key=float)


def race(name: str) -> tuple[str]:
    """Speed-up over timm in inference, with PyTorch."""
    words = ("--models", name, "--modes", "predict", "--backends", "torch")
    printed = run("benchmarks/speed.py", *words)
    return (re.search(rf"^\| {name} \| timm \| ([\d.]+)", printed, re.MULTILINE)[1],)


def run(program: str, *words) -> str:
    command = [sys.executable, ROOT / program, *words]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def demo() -> tuple[str, ...]:
    """Accuracies after the training of `make demo`."""
    return tuple(re.findall(r"([\d.]+)%$", run("examples/demo.py"), re.MULTILINE)[:2])


SIZES, DEEPVIT, README = "docs/sizes.md", "docs/families/deepvit.md", "README.md"
SHIPPED = r"^\| `(\w+)` \| "
QUICK = (
    Stated(SIZES, r"^\| (\w+) (?:\|[^|]+){3}\| ([\d,]+) \|", lambda n: (f"{count(n):,}",), 1),
    Stated(SIZES, r"^\| (\w+) (?:\|[^|]+){4}\| (\d+\.\d\d) \|", macs, 1),
    Stated(SIZES, r"without them, (ViT_S) has ([\d.]+)", without_maps, 1),
    Stated(SIZES, r"(ConViT_S) (\d\.\d+)\.$", without_maps, 1),
    Stated(DEEPVIT, r"(\d+\.\d+) GMACs here", partial(macs, "DeepViT_L", dim=408)),
    Stated(DEEPVIT, r"420 in Table 7 \((.+?)\)", partial(macs, "DeepViT_L")),
    Stated(README, r"^\| (\w+) (?=.*\| (.+) \|$)\| ([\d.]+) \| ([\d.]+) \| (.+?) \|", in_readme, 2),
    Stated(README, r"the (\d+) known checkpoints", lambda: known()[:1]),
    Stated(
        "docs/guides/pretrained.md",
        r"Of the (\d+) known checkpoints, (\d+) are .+ and (\d+) ship [^.]+\. The\n(\d+) of",
        known,
    ),
    Stated(README, r"(\w+_Mini) (\d+\.\d+)", lambda n: of_catalog(f"{n.lower()}_cifar10")[1:], 1),
    Stated(README, r"(inference|training) (\d\.\d+) to (\d\.\d+)", speeds, 1),
    Stated("weights/README.md", SHIPPED + r"([\d,]+) \| ([\d.]+) %", of_catalog, 1),
    Stated("docs/claims.md", r"are (-.+?) M and (\+.+?) M", additional),
)
"""What takes less than a minute together; a test compares them, for the sizes of the README."""


def slow(cifar10: str) -> tuple[Stated, ...]:
    """Return what takes up to an hour."""
    measured = SHIPPED + r".+?\| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) \|"
    return (
        Stated("weights/README.md", measured, partial(accuracies, cifar10), 1, within=1e-3),
        Stated(README, r"Fashion-MNIST: ([\d.]+) %; .* gives ([\d.]+) %", demo, within=0.1),
        Stated(
            "docs/speed.md", r"^\| (CaiT_XXS24|ViT_Ti) \| timm \| ([\d.]+)", race, 1, within=0.3
        ),
    )


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", help="npz with x_test and y_test: also what takes long")
    options = parser.parse_args(words)
    rows = QUICK + (slow(options.cifar10) if options.cifar10 else ())
    differing = [line for row in rows for line in row.differing()]
    print("\n".join(differing or ["All numbers are as stated."]))
    for page, command in WRITTEN.items():
        print(f"not run: {page}, by {command}")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
