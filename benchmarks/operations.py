"""Where the time of a step goes: PyTorch's operations, ours beside a peer's.

    KERAS_BACKEND=torch python benchmarks/operations.py --model CaiT_XXS24 --mode predict

Milliseconds a step in each operation, by PyTorch's profiler; what is not in an operation
is Python's, or waiting. Both run in one process, in which freed memory is kept
(`keras_vitx.backend.keep_memory`), so the peer is quicker here than by itself.
"""

import argparse

from contenders import PLAIN, TIMM, WHO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="CaiT_XXS24", choices=sorted({*TIMM, *PLAIN}))
    parser.add_argument("--mode", default="predict", choices=("predict", "train"))
    parser.add_argument("--batch", type=int, default=8, help="images a step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10, help="operations shown")
    arguments = parser.parse_args()

    import keras

    if keras.backend.backend() != "torch":
        parser.error(f"this is PyTorch's profiler, not that of {keras.backend.backend()}")
    task = {
        "model": arguments.model,
        "mode": arguments.mode,
        "batch": arguments.batch,
        "precision": "float32",
        "compile": False,
        "remat": False,
    }
    peer = "timm" if arguments.model in TIMM else "plain"
    found = {who: operations(WHO[who](task), arguments.steps) for who in ("ours", peer)}
    names = {name for times in found.values() for name in times}
    names = sorted(names, key=lambda name: -max(times.get(name, 0) for times in found.values()))
    print(f"{arguments.model}, {arguments.mode}, batch {arguments.batch}, float32\n")
    print(f"| operation | ours, ms | {peer}, ms |\n|---|---|---|")
    for name in names[: arguments.rows]:
        print(f"| {name} | " + " | ".join(f"{t.get(name, 0):.0f}" for t in found.values()) + " |")
    print("| all | " + " | ".join(f"{sum(t.values()):.0f}" for t in found.values()) + " |")


def operations(step, steps: int) -> dict[str, float]:
    """Return the milliseconds a step that each operation takes itself."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    return {
        event.key.removeprefix("aten::"): event.self_cpu_time_total / steps / 1000
        for event in profiler.key_averages()
    }


if __name__ == "__main__":
    main()
