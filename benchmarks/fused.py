"""Compare models with their fused form (`keras_vitx.fuse`): operations, latency, memory.

    KERAS_BACKEND=torch python benchmarks/fused.py --models CaiT_XXS24 ConViT_Ti
    python benchmarks/fused.py --backends torch jax tensorflow --batches 1 32

Both forms run in processes of their own, in turns; times are medians, and ratios medians over
the turns. `--clock cpu` measures CPU time instead, on a machine that is busy. Memory is the peak
of a process during its steps minus what it held before them.

Operations are those of the traced graph at batch 1. TensorFlow: operations of the concrete
function without constants, placeholders and reads of variables. JAX: equations, with those of
inner functions. PyTorch: calls in the graph of `torch.export`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from contenders import batch, held

BACKENDS = ("torch", "jax", "tensorflow")
MODELS = ("CaiT_XXS24", "ConViT_Ti", "DeepViT_S", "RefinedViT_S")
FORMS = ("plain", "fused")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NO_OPERATION = {"Const", "Placeholder", "ReadVariableOp", "Identity", "NoOp"}


class Worker:
    """A process that runs one form of a model."""

    def __init__(self, form: str, model: str, backend: str, clock: str):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--form", form, "--models", model, "--clock", clock],
            env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: str, value: int = 0):
        """Send a question and return the answer."""
        print(question, value, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, help="model sizes")
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 32), help="images per step")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.form:
        return work(arguments.models[0], arguments.form, CLOCKS[arguments.clock])
    backends = arguments.backends or [os.environ.get("KERAS_BACKEND") or BACKENDS[0]]
    print("| model | backend | operations | batch | ms, plain | ms, fused | speed-up | MiB |")
    print("|" + "---|" * 8)
    for model in arguments.models:
        for backend in backends:
            compare(model, backend, arguments.batches, arguments.turns, arguments.clock)


def compare(model: str, backend: str, batches: list[int], turns: int, clock: str) -> None:
    """Print one row for each batch size."""
    workers = {form: Worker(form, model, backend, clock) for form in FORMS}
    counts = [worker.ask("operations") for worker in workers.values()]
    for size in batches:
        times = {form: [] for form in FORMS}
        for worker in workers.values():
            worker.ask("first", size)
        for _ in range(turns):
            for form, worker in workers.items():
                times[form].append(worker.ask("step", size))
        memory = [worker.ask("memory") for worker in workers.values()]
        plain, fused = (1000 * statistics.median(times[form]) for form in FORMS)
        ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
        cells = (
            *(model, backend, "{} → {}".format(*counts), size),
            *(f"{plain:.0f}", f"{fused:.0f}", f"{ratio:.2f}", "{:.0f} → {:.0f}".format(*memory)),
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    for worker in workers.values():
        worker.stop()


def work(name: str, form: str, clock: Callable[[], float]) -> None:
    """Answer the questions of a `Worker`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Keep the output of libraries out of the answers.
    import keras
    import numpy as np

    import keras_vitx as kv

    model = kv.create_model(name)
    if form == "fused":
        model = kv.fuse(model)
    images, before = {}, 0.0

    def step(size):
        model.predict_on_batch(images[size])

    for line in sys.stdin:
        question, size = line.split()[0], int(line.split()[1])
        if question == "operations":
            answer = operations(model)
        elif question == "first":
            images[size] = keras.ops.convert_to_tensor(batch(size)[0])
            before = held()
            Path("/proc/self/clear_refs").write_text("5")  # The peak starts anew.
            answer = step(size)
        elif question == "step":
            # Small batches several times, for a stable median.
            times = []
            for _ in range(max(1, 8 // size)):
                start = clock()
                step(size)
                times.append(clock() - start)
            answer = float(np.median(times))
        else:
            status = Path("/proc/self/status").read_text()
            answer = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**10 - before
        print(json.dumps(answer), file=answers, flush=True)


def operations(model) -> int:
    """Return the number of operations of the traced graph at batch 1."""
    import keras

    shape = (1, *model.input_shape[1:])
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        function = tf.function(lambda images: model(images, training=False))
        graph = function.get_concrete_function(tf.TensorSpec(shape)).graph
        return sum(one.type not in NO_OPERATION for one in graph.get_operations())
    if keras.backend.backend() == "jax":
        import jax

        traced = jax.make_jaxpr(lambda images: model(images, training=False))
        return _equations(traced(jax.ShapeDtypeStruct(shape, "float32")).jaxpr)
    import torch

    with torch.no_grad():
        program = torch.export.export(model.eval(), (torch.zeros(shape),), strict=False)
    return sum(node.op == "call_function" for node in program.graph.nodes)


def _equations(jaxpr) -> int:
    """Count the equations of a jaxpr; one that calls another jaxpr counts as that one."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [
            getattr(value, "jaxpr", value)
            for value in equation.params.values()
            if hasattr(value, "eqns") or hasattr(value, "jaxpr")
        ]
        total += sum(map(_equations, inner)) if inner else 1
    return total


if __name__ == "__main__":
    main()
