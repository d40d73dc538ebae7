"""Profile one step: milliseconds per operation.

    KERAS_BACKEND=torch python benchmarks/operations.py --model CaiT_XXS24 --mode predict
    KERAS_BACKEND=jax python benchmarks/operations.py --model CaiT_XXS24 --mode train

Under PyTorch, PyTorch's profiler measures our model and a peer; time outside operations is
Python overhead or waiting. Both run in one process, which keeps freed memory
(`keras_vitx.keep_memory`), so the peer is faster here than in a process of its own.

Under JAX, JAX's profiler measures our model alone. A fused operation is listed as its last
operation, under the layer it comes from; `backward` marks the backward pass, and `again` what
the backward pass recomputes. XLA runs some operations concurrently.
"""

import argparse
import gzip
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from contenders import PLAIN, TIMM, WHO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="CaiT_XXS24", choices=sorted({*TIMM, *PLAIN}))
    parser.add_argument("--mode", default="predict", choices=("predict", "train"))
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10, help="operations shown")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        import keras

        backend = keras.backend.backend()
        if backend not in ("torch", "jax"):
            parser.error(f"profiling requires the torch or jax backend; the backend is {backend}")
        peer = "timm" if arguments.model in TIMM else "plain"
        task = {
            "model": arguments.model,
            "mode": arguments.mode,
            "batch": arguments.batch,
            "precision": "float32",
            "compile": False,
            "remat": False,
            "pure": False,
        }
        found = {}
        for who in ("ours", peer) if backend == "torch" else ("ours",):
            step = WHO[who](task)
            for _ in range(2):
                step()
            if backend == "torch":
                found[who] = torch_operations(step, arguments.steps)
            else:
                found[who] = jax_operations(step, arguments.steps, Path(folder))
    names = {name for times in found.values() for name in times}
    names = sorted(names, key=lambda name: -max(times.get(name, 0) for times in found.values()))
    print(f"{arguments.model}, {arguments.mode}, {backend}, batch {arguments.batch}, float32\n")
    print("| operation | " + " | ".join(f"{who}, ms" for who in found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for name in names[: arguments.rows]:
        print(f"| {name} | " + " | ".join(f"{t.get(name, 0):.0f}" for t in found.values()) + " |")
    print("| all | " + " | ".join(f"{sum(t.values()):.0f}" for t in found.values()) + " |")


def torch_operations(step: Callable[[], None], steps: int) -> dict[str, float]:
    """Return the milliseconds per step of each operation, without its children."""
    from torch.profiler import ProfilerActivity, profile

    times = Counter()
    for _ in range(steps):
        # One step per record: beside the records, the memory of the maps is not reused.
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            step()
        for event in profiler.key_averages():
            times[event.key.removeprefix("aten::")] += event.self_cpu_time_total / steps / 1000
        del profiler, event
        step()
    return dict(times)


def jax_operations(step: Callable[[], None], steps: int, folder: Path) -> dict[str, float]:
    """Return the milliseconds per step of each operation, by layer.

    Args:
        step: The step; it has run before, so that XLA's programs are in `folder`.
        steps: Number of steps to measure.
        folder: Folder to which XLA writes its programs.
    """
    import jax

    with jax.profiler.trace(str(folder)):
        for _ in range(steps):
            step()
    origins = {}
    for program in folder.glob("*after_optimizations.txt"):
        origins.update(origins_in(program.read_text()))
    times = Counter()
    (trace,) = folder.glob("**/*.trace.json.gz")
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    for event in events:
        operation = event.get("args", {}).get("hlo_op")
        if operation and event["ph"] == "X":
            name = readable(origins.get((event["args"]["hlo_module"], operation), ""))
            times[name or re.sub(r"[.\d]+$", "", operation)] += event["dur"] / steps / 1000
    return times


def origins_in(program: str) -> dict[tuple[str, str], str]:
    """Return the origin of each operation of an XLA program, by (program, operation)."""
    name = re.match(r"HloModule (\S+?),", program)[1]
    origins, bodies, body = {}, {}, ""
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%(\S+) .*\{$", line):
            body = head[1]
        elif operation := re.match(r"\s+(?:ROOT )?%(\S+) = ", line):
            origin = re.search(r'op_name="([^"]*)"', line)
            called = re.search(r"calls=%([^\s,]+)", line)
            # A fused computation precedes its caller.
            found = origin[1] if origin else bodies.get(called[1], "") if called else ""
            origins[name, operation[1]] = found
            bodies[body] = found or bodies.get(body, "")
    return origins


def readable(origin: str) -> str:
    """Return the layer, name and pass of an operation, without the block's index."""
    again, backward = "rematted_computation" in origin, "transpose(" in origin
    origin = re.sub(r"jit\([^)]*\)/", "", origin)
    origin = re.sub(r"(transpose|jvp|vmap)\(|\)", "", origin)
    origin = re.sub(r".*(blocks_\d+|closed_call|checkpoint|rematted_computation)/", "", origin)
    origin = re.sub(r"/+", "/", origin).strip("/").removeprefix("while/body/")
    return origin + (", again" if again else ", backward" if backward else "") if origin else ""


if __name__ == "__main__":
    main()
