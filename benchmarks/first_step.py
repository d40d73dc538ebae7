"""The first training step of our models, later ones, and the memory that they take.

    python benchmarks/first_step.py                              # three models and backends
    python benchmarks/first_step.py --backends jax --turns 5 --beside ../old --plot steps.png
    python benchmarks/first_step.py --backends jax --flags="--xla_cpu_use_fusion_emitters=false"

`--beside` is another checkout of this package, as by `git worktree add ../old COMMIT`; `--flags`
is this one with more XLA_FLAGS, under JAX. Each contender runs in its own process, one at a time,
in turns. Under JAX, a second process finds the compiled programs that the first one kept, in a
folder that was empty. Figures are medians over the turns: a later step is the least of `--steps`,
processor time that of all threads, memory the peak of the process, the loss that of the first step.
A ratio is one of medians, with those of single turns; below 1, this checkout takes less.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import contenders
import tables

ROOT = Path(__file__).resolve().parents[1]
TITLES = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
TIMES = ("first step, s", "first step, processor time, s")
SECOND = ("first step, second process, s", "first step, second process, processor time, s")
FIGURES = (*TIMES, *SECOND, "later step, s", "memory, MiB")


def measure(name: str, batch: int, steps: int, checkout: str) -> list[float]:
    """Return what training takes in this process: `TIMES`, a later step, memory, loss."""
    import keras

    import keras_vitx as kv
    from keras_vitx.training.optimizer import AdamW

    assert Path(kv.__file__).is_relative_to(checkout), kv.__file__
    keras.utils.set_random_seed(0)
    model = getattr(kv, name)(weights=None)
    model.compile(AdamW(1e-3), loss="sparse_categorical_crossentropy")
    images, labels = contenders.batch({"model": name, "batch": batch})

    def step() -> list[float]:
        start = time.perf_counter(), time.process_time()
        loss = float(model.train_on_batch(images, labels))
        return [time.perf_counter() - start[0], time.process_time() - start[1], loss]

    *times, loss = step()
    return [*times, min(step()[0] for _ in range(steps)), contenders.peak(), loss]


def run(backend: str, checkout: Path, flags: str, *task) -> dict[str, float]:
    """Return the figures of a process; under JAX, also of a second one."""
    command = [sys.executable, __file__, "--one", json.dumps([*task, str(checkout)])]
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(checkout)}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1"}
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flags}".strip()
    found = {}
    with tempfile.TemporaryDirectory() as env["JAX_COMPILATION_CACHE_DIR"]:
        for times in (TIMES, SECOND) if backend == "jax" else (TIMES,):
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{checkout} on {backend} failed: {done.stderr[-1500:]}")
            names = (*times, *FIGURES[-2:], "loss")
            found = dict(zip(names, json.loads(done.stdout.splitlines()[-1]), strict=True)) | found
    return found


def compare(turns: list[dict], others: list[dict], name: str) -> tuple[float, ...]:
    """Return the ratio of the medians, the least and the largest of a turn, and the medians."""
    mine, theirs = ([turn[name] for turn in each] for each in (turns, others))
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    return median(mine) / median(theirs), min(ratios), max(ratios), median(mine), median(theirs)


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(results: dict[tuple, dict[str, list[dict]]]) -> str:
    """Return the medians, and ratios below them, as a Markdown table."""
    rows = [["backend", "model", "checkout", *FIGURES, "loss"]]
    for (backend, model), entered in results.items():
        for who, turns in entered.items():
            found = [compare(entered["this"], turns, n) if n in turns[0] else () for n in FIGURES]
            cells = [short(one[-1]) if one else "–" for one in found]
            rows.append([TITLES[backend], model, who, *cells, f"{turns[0]['loss']:.6f}"])
            if who != "this":
                cells = ["{:.2f} ({:.2f}–{:.2f})".format(*one) if one else "–" for one in found]
                rows.append(["", "", f"this / {who}", *cells, ""])
    return tables.markdown(rows)


def plot(results: dict[tuple, dict[str, list[dict]]], path: Path) -> None:
    """Plot the ratios but those of processor time, and lines for the range of the turns."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    place, titles, labels, texts, end = 0, [], {}, {}, 1
    for name in (name for name in FIGURES if "processor" not in name):
        what, _, unit = name.rpartition(", ")
        for (backend, model), entered in results.items():
            for who in [who for who in entered if who != "this" and name in entered[who][0]]:
                if (title := f"{what}, {TITLES[backend]}") not in titles:
                    titles, place = [*titles, title], place + 1.4
                    ax.text(0.01, place + 0.05, title, va="center", fontsize=9, weight="bold")
                ratio, low, high, new, old = compare(entered["this"], entered[who], name)
                place, end = place + 1, max(end, high)
                labels[place] = model + f", {who}" * (len(entered) > 2)
                texts[place] = f"{ratio:.2f}:  {short(new)} {unit}, {who} {short(old)} {unit}"
                ax.barh(place, ratio, 0.75, color="tab:blue" if ratio <= 1 else "tab:red")
                ax.plot([low, high], [place, place], color="black", linewidth=1)
    for place, text in texts.items():
        ax.text(end * 1.03, place, text, va="center", fontsize=9)
    ax.axvline(1, color="black", linewidth=1)
    ax.set_yticks([*labels], labels.values(), fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.set_xticks([tick / 5 for tick in range(int(5 * end) + 1)])
    ax.set(ylim=(place + 0.7, 0.7), xlim=(0, 1.7 * end))
    ax.set_xlabel("time or memory, this / other (less is better); thin lines: range of the turns")
    ax.spines[["top", "right"]].set_visible(False)
    figure.set_size_inches(7, 0.7 + 0.2 * place)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["CaiT_XXS24", "ViT_S", "DeepViT_S"])
    parser.add_argument("--backends", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--steps", type=int, default=3, help="steps after the first")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout of this package")
    parser.add_argument("--flags", help="XLA_FLAGS of one more contender, under JAX")
    parser.add_argument("--plot", type=Path, help="image file for the ratios")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return print(json.dumps(measure(*options.one)))
    if options.plot and not (options.beside or options.flags):
        parser.error("--plot shows ratios: it needs --beside or --flags")
    who = {"this": (ROOT, "")}
    who |= {options.beside.name: (options.beside.resolve(), "")} if options.beside else {}
    results = {}
    for backend in options.backends:
        flags = {"flags": (ROOT, options.flags)} if options.flags and backend == "jax" else {}
        for model in options.models:
            found = results[backend, model] = {one: [] for one in who | flags}
            for turn in range(options.turns):
                for one, contender in (who | flags).items():
                    found[one].append(run(backend, *contender, model, options.batch, options.steps))
                    print(f"{backend}, {model}, turn {turn + 1}, {one}", file=sys.stderr)
    print(table(results))
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
