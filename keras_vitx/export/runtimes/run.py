"""Run as `python run.py FORMAT PATH INPUTS.npz OUTPUTS.npz` to compute the outputs of a file.

FORMAT.py, beside this file, opens the file in the format's own runtime. Neither Keras nor
keras_vitx can be imported in this process, so a file that depends on one of them fails.
"""

import importlib.metadata
import json
import runpy
import statistics
import sys
import time
from pathlib import Path

import numpy as np

WARM, MOST, SECONDS = 2, 30, 1.5
"""Runs before the latency is measured, and the limits of the measurement."""


def main(format: str, path: str, inputs: str, outputs: str) -> None:
    """Write the outputs of each batch as `<batch>.<name>`, in float32, and `facts`, a JSON text."""
    sys.modules.update({"keras": None, "keras_vitx": None})
    runtime = runpy.run_path(str(Path(__file__).with_name(f"{format}.py")))
    batches = dict(np.load(inputs))
    run = runtime["load"](path)
    results = {}
    for name, images in batches.items():
        for output, value in run(images).items():
            results[f"{name}.{output}"] = value
    latency = measure(run, next(iter(batches.values()))[:1]) if "0" in batches else None
    versions = {package: importlib.metadata.version(package) for package in runtime["PACKAGES"]}
    facts = {"latency_ms": latency, "versions": versions}
    np.savez(outputs, facts=np.array(json.dumps(facts)), **results)


def measure(run, images) -> float:
    """Return the median latency of a batch, in milliseconds."""
    for _ in range(WARM):
        run(images)
    times, end = [], time.perf_counter() + SECONDS
    while not times or (len(times) < MOST and time.perf_counter() < end):
        start = time.perf_counter()
        run(images)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main(*sys.argv[1:])
