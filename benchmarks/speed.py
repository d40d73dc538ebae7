"""Compare the speed and memory of our models with those of their peers.

    python benchmarks/speed.py                      # about 32 minutes on two cores
    python benchmarks/speed.py --quick              # a few rows, as a smoke test
    python benchmarks/speed.py --all                # every peer, in training as well
    python benchmarks/speed.py --models CaiT_S24 --modes train --backends torch jax
    python benchmarks/speed.py --batch 128 --precision mixed_bfloat16   # on a GPU
    python benchmarks/speed.py --write              # and the table of docs/speed.md

Every contender runs in its own process, one at a time, in turns; a large matrix product takes
its turn as well. Each turn starts with one untimed step, because the previous contender has
evicted the caches. Times are medians; speed-ups are medians over the turns. The share of matmul
rate is a model's MACs per second divided by those of the matrix product. Peers run as their users
run them and, under PyTorch, once more with the allocator settings of ours ("kept memory"), which
leaves the ratio of the algorithms. In mixed_bfloat16, they run under autocast. A peer that
is not installed is skipped with a message.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import tables
from contenders import KERAS_HUB, PLAIN, TIMM, ZEROMODELS

ROOT = Path(__file__).parents[1]
TITLES = {"predict": "inference", "train": "training", "torch": "PyTorch", "jax": "JAX"}
MODELS = (
    *("CaiT_XXS24", "CaiT_S24", "ConViT_Ti", "ConViT_S", "DeepViT_S", "RefinedViT_S"),
    *("CBViT_Ti", "CBViT_S", "ViT_Ti", "ViT_S", "RoPEViT_S", "DINOv3_S"),
)
PEERS = {"timm": "timm", "plain": "plain PyTorch"}
# Baseline for the cost of a modification: the plain network of similar width.
PLAIN_VIT = {one: "ViT_S" if "_S" in one else "ViT_Ti" for one in MODELS[:8]}
BACKENDS = ("torch", "jax", "tensorflow")
MISSING = ("ModuleNotFoundError", "InvalidCxxCompiler", "CppCompileError")
"""Errors of what is not installed. Any other error of a peer ends the benchmark."""
# Models for which every peer and backend runs; slow ones are skipped for the others.
FULL = ("CaiT_XXS24", "ViT_Ti")
# Settings of docs/speed.md, which the C library reads when a process starts: ours has them.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# To save time, these run only if named or with `--all`.
RARE = ("CBViT_S", "RoPEViT_S", "DINOv3_S")
# To save time, these run without their baseline except with `--all`.
WITHOUT_PRICE = ("RefinedViT_S",)


def gmacs(model: str) -> float:
    """Return the GMACs per image, attention included."""
    sizes = (ROOT / "docs" / "sizes.md").read_text()
    return float(re.search(rf"^\| {model} (?:\|[^|]*){{4}}\| ([\d.]+) ", sizes, re.MULTILINE)[1])


def machine() -> str:
    """Return the processor's name, and which instructions for matrices in half precision it has."""
    facts = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.*)$", facts, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", facts, re.MULTILINE)
    has = {"amx_bf16", "avx512_bf16", "avx512_fp16"} & set(flags[1].split() if flags else ())
    return f"{name[1] if name else 'unknown'}, {', '.join(sorted(has)) or 'no bfloat16'}"


@dataclass
class Contender:
    """A process that takes steps on request, and its measurements."""

    label: str
    backend: str
    process: subprocess.Popen
    errors: IO[str]
    ready: bool = False
    times: list[float] = field(default_factory=list)
    memory: float = 0.0

    @classmethod
    def start(cls, who: str, backend: str, of: str, **task) -> "Contender":
        """Start a contender for the benchmark of model `of`."""
        label = {"ours": "keras_vitx"}.get(who, who)
        label += ", compiled" if task.get("compile") else ""
        label += ", remat" if task.get("remat") else ""
        label += ", kept memory" if task.get("kept") else ""
        label += f" {task['model']}" if task["model"] != of else ""
        # A file, because a pipe might fill up. `stop` closes it.
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        program, pipe = Path(__file__).with_name("contenders.py"), subprocess.PIPE
        words = [sys.executable, program, json.dumps({"who": who, **task})]
        env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        env |= KEPT if task.get("kept") or who == "ours" else {}
        process = subprocess.Popen(
            words, env=env, stdin=pipe, stdout=pipe, stderr=errors, text=True
        )
        return cls(label, backend, process, errors)

    def wait(self) -> None:
        """Wait until the process is ready for the first step, or has failed."""
        self.ready = bool(self.process.stdout.readline())

    def take_first_step(self) -> bool:
        """Take the first step; print a message and return False if a peer is not installed."""
        answer = self._take(1) if self.ready else None
        if answer is None:
            self.errors.seek(0)
            errors = self.errors.read()
            last = errors.strip().splitlines()[-1:]
            # Of packages, and of the compiler that `torch.compile` calls.
            missing = next((name for name in MISSING if name in errors), None)
            if missing is None or self.label.startswith("keras_vitx"):
                raise SystemExit(f"{self.label} on {self.backend} failed: {last}")
            print(f"{self.label} on {self.backend} is skipped ({missing}): {last}", file=sys.stderr)
            return False
        return True

    def run(self, steps: int) -> None:
        """Take one untimed step to refill the caches, then the timed steps."""
        self._take(1)
        answer = self._take(steps)
        self.times.append(statistics.median(answer["times"]))
        self.memory = answer["memory"]

    def stop(self) -> None:
        self.process.kill()  # All results are in; a regular exit takes a second longer.
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    def _take(self, steps: int) -> dict | None:
        print(steps, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        return json.loads(line) if line else None


def contenders_of(model: str, mode: str, backends: list[str], full: bool, arguments) -> list[tuple]:
    """Return (who, backend, further arguments) of every contender for a model."""
    found = [("ours", backend, {}) for backend in backends]
    if model in PLAIN_VIT and (arguments.all or model not in WITHOUT_PRICE):
        found += [("ours", backend, {"model": PLAIN_VIT[model]}) for backend in backends]
    if arguments.remat and mode == "train":
        found += [("ours", backend, {"remat": True}) for backend in backends]
    if "torch" in backends:
        for who in ("timm",) * (model in TIMM) + ("plain",) * (model in PLAIN):
            found += [(who, "torch", kept) for kept in ({}, {"kept": True})]
        found += [("timm", "torch", {"compile": True})] if model in TIMM and full else []
    peers = {"zeromodels": ZEROMODELS, "keras_hub": KERAS_HUB} if full else {}
    peers = [who for who, models in peers.items() if model in models]
    return found + [(who, backend, {}) for who in peers for backend in backends]


def race(model: str, mode: str, batch: int, precision: str, arguments) -> list[dict]:
    """Run all contenders for a model in turns; return one row per contender."""
    task = {"model": model, "mode": mode, "batch": batch, "precision": precision}
    side = 2048 if arguments.batch <= 16 else 8192
    limit = Contender.start("product", "torch", model, **{**task, "batch": side})
    full = model in FULL and not arguments.quick and (arguments.all or mode == "predict")
    backends = arguments.backends or (BACKENDS if full else BACKENDS[:2])
    entered = [
        Contender.start(who, backend, model, **{**task, **more})
        for who, backend, more in contenders_of(model, mode, backends, full, arguments)
    ]
    # They start up in parallel; from then on one runs at a time.
    for contender in (limit, *entered):
        contender.wait()
    limit, *entered = [one for one in (limit, *entered) if one.take_first_step()]
    for _ in range(arguments.turns):
        for contender in (limit, *entered):
            contender.run(arguments.steps)
    for contender in (limit, *entered):
        contender.stop()
    at_best = side**3 / 1e9 / statistics.median(limit.times)
    ours = {c.backend: c for c in entered if c.label == "keras_vitx"}
    plain = {c.backend: c for c in entered if c.label == f"keras_vitx {PLAIN_VIT.get(model)}"}
    rows = []
    for contender in entered:
        is_plain = contender in plain.values()
        # Training takes three times the MACs: the forward pass and two gradients.
        images = batch * gmacs(PLAIN_VIT[model] if is_plain else model)
        work = images * (3 if mode == "train" else 1)
        seconds = statistics.median(contender.times)
        price = None
        if contender.label == "keras_vitx" and contender.backend in plain:
            work_ratio = gmacs(model) / gmacs(PLAIN_VIT[model])
            price = work_ratio * _ratio(plain[contender.backend], contender)
        rows.append(
            {
                **task,
                "who": contender.label,
                "backend": contender.backend,
                "images/s": batch / seconds,
                "spread": (max(contender.times) - min(contender.times)) / seconds,
                "share": work / seconds / at_best,
                "speed-up": {} if is_plain else {k: _ratio(contender, c) for k, c in ours.items()},
                "price": price,
                "memory": contender.memory,
                "limit": 2 * at_best,
            }
        )
    return rows


def _ratio(peer: Contender, own: Contender) -> float:
    """Return our speed-up over a peer, the median over the turns."""
    return statistics.median(a / b for a, b in zip(peer.times, own.times, strict=True))


def table(rows: list[dict]) -> str:
    """Return the rows as a Markdown table."""
    titles = ("model", "mode", "implementation", "backend", "images/s", "±")
    titles += ("share of matmul rate", "speed-up, same backend", "best speed-up", "peak MiB")
    cells = [titles]
    for row in rows:
        own = row["who"].startswith("keras_vitx")
        ratios = row["speed-up"]
        same = ratios.get(row["backend"])
        best = max(ratios.items(), key=lambda item: item[1], default=None)
        cells.append(
            (
                *(row[name] for name in ("model", "mode", "who", "backend")),
                *(f"{row['images/s']:.1f}", f"{row['spread'] / 2:.0%}", f"{row['share']:.0%}"),
                "" if own or same is None else f"{same:.2f}",
                "" if own or best is None else f"{best[1]:.2f} ({best[0]})",
                f"{row['memory']:.0f}",
            )
        )
    return tables.markdown(cells)


def summary(rows: list[dict]) -> str:
    """Return the speed-ups over timm or plain PyTorch."""
    cells = {}
    for row in rows:
        who, _, memory = row["who"].partition(", ")
        if who not in PEERS or memory not in ("", "kept memory"):
            continue
        cells[row["model"], "peer"] = PEERS[who]
        for backend in ("torch",) if memory else ("torch", "jax"):
            if backend in row["speed-up"]:
                column = title(row["mode"], backend) + (memory and f", {memory}")
                cells[row["model"], column] = f"{row['speed-up'][backend]:.2f}"
    return pivot(cells)


def costs(rows: list[dict]) -> str:
    """Return the MACs per second of modified models over those of the plain ViT."""
    cells = {}
    for row in rows:
        if row["price"] and row["backend"] in TITLES:
            cells[row["model"], title(row["mode"], row["backend"])] = f"{row['price']:.2f}"
    return pivot(cells)


def title(mode: str, backend: str) -> str:
    return f"{TITLES[mode]}, {TITLES[backend]}"


def pivot(cells: dict[tuple[str, str], str]) -> str:
    """Return cells by model and column, in order of appearance, as a Markdown table."""
    columns = list(dict.fromkeys(column for _, column in cells))
    models = dict.fromkeys(model for model, _ in cells)
    rows = ([model, *(cells.get((model, c), "") for c in columns)] for model in models)
    return tables.markdown([["model", *columns], *rows])


def write(rows: list[dict]) -> None:
    """Replace the table of docs/speed.md."""
    path, new = ROOT / "docs" / "speed.md", summary(rows)
    if not tables.replace(path, new):
        raise SystemExit(f"{path} has no table with the columns of this run:\n{new}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=None)
    parser.add_argument("--modes", nargs="+", choices=("predict", "train"), default=None)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=None)
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--precision", choices=("float32", "mixed_bfloat16"), default="float32")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps per turn")
    parser.add_argument("--remat", action="store_true", help="also train our models with remat")
    parser.add_argument("--quick", action="store_true", help="a few rows, as a smoke test")
    parser.add_argument("--all", action="store_true", help="all models, costs and peers")
    parser.add_argument("--write", action="store_true", help="write the table of docs/speed.md")
    arguments = parser.parse_args()
    selected = arguments.models or arguments.modes or arguments.backends or arguments.quick
    if arguments.write and (selected or arguments.precision != "float32" or arguments.batch != 8):
        parser.error("--write replaces whole tables, of every model and mode in float32, batch 8")
    usual = MODELS if arguments.all else [model for model in MODELS if model not in RARE]
    arguments.models = arguments.models or (FULL if arguments.quick else usual)
    arguments.modes = arguments.modes or (("predict",) if arguments.quick else ("predict", "train"))
    rows, start = [], time.perf_counter()
    for mode in arguments.modes:
        for model in arguments.models:
            new = race(model, mode, arguments.batch, arguments.precision, arguments)
            print(f"{model}, {mode}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
            rows += new
    limit = statistics.median(row["limit"] for row in rows)
    print(
        f"Batch {arguments.batch}, {arguments.precision}. {machine()}. "
        f"A large matrix product ran at {limit:.0f} GFLOP/s "
        f"on {len(os.sched_getaffinity(0))} cores.\n"
    )
    print(table(rows), summary(rows), costs(rows), sep="\n\n")
    if arguments.write:
        write(rows)


if __name__ == "__main__":
    main()
