"""What the package does on a GPU or a TPU: one command that is repeated until all is measured.

    KERAS_BACKEND=torch python benchmarks/accelerator.py h100-torch.jsonl
    KERAS_BACKEND=jax python benchmarks/accelerator.py h100-jax.jsonl --models ViT_S CaiT_S24
    python benchmarks/accelerator.py toy.jsonl --toy    # the same code at toy sizes, on any CPU

It runs from a checkout, without an installation. Every measurement is a process of its own, so that
an error in one leaves the others and peaks of memory don't add up; its result is a line of JSON in
the file. A command stops after `--minutes`, and the next one skips what the file has. In this
order:

ceilings      what the device reaches: bytes copied and bfloat16 products per second
step          time and memory of a training step in bfloat16, beside timm's under autocast, and the
              fraction of the bound by bytes and FLOPs (docs/accelerators.md) at these ceilings
ways          the same with `remat="products"` and `remat=True`; under PyTorch compiled, also timm's
kernels       the same with each kernel of `keras_vitx/layers/kernels/` replaced by its plain form
fit           images per second of `kv.fit`
correctness   each family and precision, logits and gradients, against float64 on the CPU; under
              PyTorch also the number of times that a step waits for the device
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

from contenders import TIMM, skip_torchvision, torch_steps

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODELS = ("ViT_S", "CaiT_S24", "ConViT_S", "DeepViT_S", "RefinedViT_S")
"""The models whose steps are timed."""
FAMILIES = ("ViT_Ti", "CaiT_XXS24", "ConViT_Ti", "DeepViT_S", "RefinedViT_S", "CBViT_Ti", "PiT_B")
HEAVY = ("CaiT_S24", "RefinedViT_S")
TOYS = ("CaiT_Mini", "RefinedViT_Mini")
# Lower bounds of a training step in bfloat16 at batch 256, in ms, at these ceilings of an H100.
BOUNDS = {"ViT_S": 20, "CaiT_S24": 77, "ConViT_S": 28, "DeepViT_S": 40, "RefinedViT_S": 127}
BOUNDS_AT = {"GB_per_s": 3350, "TFLOP_per_s": 790}
LONGEST = 180
"""Seconds after which a measurement is given up: one step must not take the minutes of all."""
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def cells(options):
    """Return the measurements, in order: the name of a function and its arguments."""
    toy, chosen = options.toy, options.models
    names = [name for name in (TOYS if toy else MODELS) if not chosen or name in chosen]
    heavy = [name for name in names if toy or name in HEAVY]
    counts = (2,) if toy else (256, 64)
    yield {"cell": "ceilings", "toy": toy}
    recomputed = [{"remat": "products"}, {"remat": True}]
    ways = ([] if toy else [{"compile": True}]) if backend() == "torch" else recomputed
    for count, way in itertools.product(counts, ({}, *ways)):
        for name in names:
            yield {"cell": "step", "model": name, "batch": count, **way}
            if name in TIMM and backend() == "torch":
                yield {"cell": "timm", "model": name, "batch": count, **way}
    for name in heavy[:1] if toy else heavy:
        for kernel in kernels()[: 1 if toy else None]:
            yield {"cell": "step", "model": name, "batch": counts[-1], "without": kernel}
    for name in names[:1]:
        yield {"cell": "fit", "model": name, "batch": 8 if toy else 256}
    for name in TOYS if toy else FAMILIES:
        if not chosen or name in chosen:
            yield {"cell": "correctness", "model": name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="file of JSON lines, to which results are added")
    parser.add_argument("--models", nargs="+", help="only these, of the steps and of the families")
    parser.add_argument("--minutes", type=float, default=9, help="limit of one command")
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a CPU")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        arguments = dict(options.one)
        print(json.dumps(globals()[arguments.pop("cell")](**arguments)))
        return
    if set(options.models or ()) - {*MODELS, *FAMILIES, *TOYS}:
        parser.error(f"--models must be of {', '.join(dict.fromkeys((*MODELS, *FAMILIES)))}.")
    end = time.monotonic() + 60 * options.minutes
    rows = [json.loads(line) for line in options.output.open()] if options.output.exists() else []
    results = {key(row["cell"]): row["result"] for row in rows if "failed" not in row["result"]}
    record(options.output, {"cell": "machine"}, machine())
    ceilings, failed = {}, 0
    for cell in cells(options):
        result = results.get(key(cell))
        if result is None:
            result = run(cell, options.output, end - time.monotonic())
            if cell["cell"] == "step" and "ms" in result:
                result |= fraction_of_bound(cell, result, ceilings)
            record(options.output, cell, result)
        failed += "failed" in result
        if cell["cell"] == "ceilings":
            ceilings = result
    if failed:
        raise SystemExit(f"{failed} measurements failed, as `failed` in {options.output} says.")


def key(cell):
    return json.dumps(cell, sort_keys=True)


def record(output, cell, result):
    line = json.dumps({"cell": cell, "result": result})
    print(line, flush=True)
    with output.open("a") as file:
        file.write(line + "\n")


def run(cell, output, limit):
    """Return what a process of its own measures within `limit` seconds, or its error."""
    if limit < 20:
        raise SystemExit("The minutes are over: run the command again for the rest.")
    command = [sys.executable, __file__, str(output), "--one", json.dumps(cell)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=min(limit, LONGEST))
    except subprocess.TimeoutExpired:
        if limit >= LONGEST:
            return {"ended": f"not within {LONGEST} s"}
        raise SystemExit(f"The minutes ended within {key(cell)}: give it more.") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"failed": done.stderr[-1500:] or f"status {done.returncode}"}
    return json.loads(lines[-1])


def fraction_of_bound(cell, result, ceilings):
    """Return the bound of a step on this card, and the fraction of it that was reached.

    The part of the bound that is due to FLOPs scales with the measured products, the rest with the
    measured bandwidth.
    """
    if cell["model"] not in BOUNDS or ceilings.keys() != BOUNDS_AT.keys():
        return {}
    flops = 6e9 * result["GMAC"] * 256
    by_flops = flops / BOUNDS_AT["TFLOP_per_s"] / 1e9  # ms
    scales = {name: BOUNDS_AT[name] / ceilings[name] for name in BOUNDS_AT}
    bound = by_flops * scales["TFLOP_per_s"]
    bound += (BOUNDS[cell["model"]] - by_flops) * scales["GB_per_s"]
    bound *= cell["batch"] / 256
    return {"bound_ms": bound, "fraction_of_bound": bound / result["ms"]}


def machine():
    """Return the card, its driver, the versions of all libraries, and the commit."""
    names = ("keras", backend(), "jaxlib", "timm", "numpy")
    found = {"backend": backend(), "python": platform.python_version()}
    for name in names:
        with contextlib.suppress(ImportError):
            found[name] = version(name)

    def output_of(*command):
        with contextlib.suppress(OSError):
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    query = "--query-gpu=name,driver_version,memory.total"
    found["card"] = output_of("nvidia-smi", query, "--format=csv,noheader") or "none"
    found["commit"] = output_of("git", "-C", str(ROOT), "rev-parse", "HEAD") or "unknown"
    return found


def backend():
    import keras

    return keras.backend.backend()


def on_gpu():
    if backend() != "torch":
        return False
    import torch

    return torch.cuda.is_available()


def wait(values):
    """Wait until the device has computed `values`."""
    if backend() == "jax":
        import jax

        jax.block_until_ready(values)
    elif on_gpu():
        import torch

        torch.cuda.synchronize()


def seconds(function, repeats):
    """Return the median time of a call, after two that are not counted if there are several."""
    times = []
    for _ in range(repeats + 2 * (repeats > 1)):
        start = time.perf_counter()
        wait(function())
        times.append(time.perf_counter() - start)
    return statistics.median(times[-repeats:])


def peak_memory():
    """Return the largest number of bytes in use on the device, or None if it is not known."""
    if on_gpu():
        import torch

        return torch.cuda.max_memory_allocated()
    if backend() == "jax":
        import jax

        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return None


def ceilings(toy):
    import keras

    size, bytes_ = (256, 1 << 20) if toy else (8192, 1 << 30)
    # A card's clock, and so its speed, depends on the values: random ones are as real data. Eight
    # at a time, as the host starts one in as long as it takes.
    x = keras.random.normal((bytes_ // 4,), dtype="float32")
    gigabytes = 16 * bytes_ / seconds(lambda: [x + 1.0 for _ in range(8)], 10) / 1e9
    a, b = (keras.random.normal((size, size), dtype="bfloat16") for _ in range(2))
    flops = 16 * size**3 / seconds(lambda: [keras.ops.matmul(a, b) for _ in range(8)], 10) / 1e12
    return {"GB_per_s": gigabytes, "TFLOP_per_s": flops}


def batch_of(model, count):
    import numpy as np

    random = np.random.default_rng(0)
    images = random.standard_normal((count, *model.input_shape[1:]), dtype="float32")
    return images, random.integers(0, model.output_shape[-1], count).astype("int32")


def as_tensors(batch):
    from keras import ops

    return tuple(ops.convert_to_tensor(part) for part in batch)


def logits_and_changes(model):
    """Return the logits of two images, and the changes of the weights by a step of SGD."""
    import keras
    import numpy as np

    images, labels = batch_of(model, 2)
    logits = keras.ops.convert_to_numpy(model(images, training=False))
    before = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.learning_rate = 1.0
    for _ in range(20):  # In float16, Keras halves the scale of the loss instead, if it overflows.
        model.train_on_batch(images, labels)
        after = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
        changes = [(b - a).ravel().astype("float64") for a, b in zip(before, after, strict=True)]
        changes = np.concatenate(changes)
        if changes.any():
            break
    return logits.astype("float64"), changes


def reference(model, path):
    """Write logits, changes and weights in float64; called in a process on the CPU."""
    import keras
    import numpy as np

    import keras_vitx as kv

    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    name, model = model, kv.create_model(model, drop_path=0.0, classifier_activation=None)
    for variable in model.trainable_variables:
        # At the start, its maps are uniform up to the rounding of half precision.
        if name.startswith("Refined") and "qkv/kernel" in variable.path:
            variable.assign(variable * 10)
    weights = model.get_weights()
    logits, changes = logits_and_changes(model)
    arrays = {f"weights{i:04}": weight for i, weight in enumerate(weights)}
    np.savez(path, logits=logits, changes=changes, **arrays)
    return {}


def correctness(model):
    import keras
    import numpy as np

    import keras_vitx as kv

    name, result = model, {}
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory, "reference.npz"))
        cell = json.dumps({"cell": "reference", "model": name, "path": path})
        on_cpu = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
        command = [sys.executable, __file__, os.devnull, "--one", cell]
        subprocess.run(command, env={**os.environ, **on_cpu}, check=True, stdout=sys.stderr)
        with np.load(path) as file:
            saved = dict(file)
    for precision in PRECISIONS:
        keras.config.set_dtype_policy(precision)
        model = kv.create_model(name, drop_path=0.0, classifier_activation=None)
        model.set_weights([saved[key] for key in sorted(saved) if key.startswith("weights")])
        logits, changes = logits_and_changes(model)
        errors = {
            name: float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
            for name, found, wanted in (
                ("logits", logits, saved["logits"]),
                ("gradients", changes, saved["changes"]),
            )
        }
        result[precision] = errors | {"waits": waits_of(model)}
    return result


def waits_of(model):
    """Return how often a training step waits for the device; None except under PyTorch on a GPU."""
    if not on_gpu():
        return None
    import torch

    batch = as_tensors(batch_of(compiled(model), 2))
    model.train_step(batch)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            model.train_step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in found)


def compiled(model, jit_compile="auto"):
    import keras_vitx as kv

    optimizer = kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit_compile)
    return model


def step(model, batch, without=None, compile=False, **arguments):
    """Return the time and the peak memory of a training step of a model of ours."""
    import keras

    import keras_vitx as kv

    keras.config.set_dtype_policy("mixed_bfloat16")
    with plain(without):
        model = compiled(kv.create_model(model, **arguments), compile or "auto")
        data = as_tensors(batch_of(model, batch))
        milliseconds = 1000 * seconds(lambda: model.train_on_batch(*data), 10 if batch > 8 else 1)
    memory, macs = peak_memory(), kv.count_macs(model)
    return {"ms": milliseconds, "peak_MB": memory and memory / 1e6, "GMAC": macs / 1e9}


def timm(model, batch, compile=False):
    """Return the time and the peak memory of a training step of timm's model under autocast."""
    skip_torchvision()
    import timm as library

    task = {"model": model, "mode": "train", "batch": batch, "compile": compile, "clip": True}
    model = library.create_model(TIMM[model], drop_path_rate=0.1)
    one = torch_steps(model, {**task, "precision": "mixed_bfloat16"})
    milliseconds, memory = 1000 * seconds(one, 10), peak_memory()
    return {"ms": milliseconds, "peak_MB": memory and memory / 1e6}


def kernels():
    """Return the names of the kernels, but for thin ones that only cost the host time."""
    from keras_vitx.layers import ops

    thin = ("shape", "reshape", "transpose", "split", "matmul", "cast", "call", "pad")
    return [name for name in ops.KERNELS.get(backend(), ()) if name not in thin]


@contextlib.contextmanager
def plain(kernel):
    """Let the plain form of an operation run in place of its kernel; None changes nothing."""
    if kernel is None:
        yield
        return
    import keras

    from keras_vitx.layers import ops

    spec, chosen = importlib.util.find_spec("keras_vitx.layers.ops"), keras.backend.backend
    forms = importlib.util.module_from_spec(spec)
    keras.backend.backend = lambda: "none"
    try:
        spec.loader.exec_module(forms)
    finally:
        keras.backend.backend = chosen
    before = getattr(ops, kernel)
    setattr(ops, kernel, getattr(forms, kernel))
    try:
        yield
    finally:
        setattr(ops, kernel, before)


def fit(model, batch):
    """Return images per second in the second epoch of `kv.fit`; nothing is called per batch."""
    import keras
    import numpy as np

    import keras_vitx as kv

    keras.config.set_dtype_policy("mixed_bfloat16")
    model, batches = kv.create_model(model), 3 if batch <= 8 else 20
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch * batches, *model.input_shape[1:]), "uint8")
    times = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            times.append(-time.perf_counter())

        def on_epoch_end(self, epoch, logs=None):
            times[-1] += time.perf_counter()

    source = images, np.arange(len(images)) % 10
    settings = {"epochs": 2, "batch_size": batch, "validation_split": 0}
    kv.fit(model, source, callbacks=[Epochs()], **settings)
    return {"images_per_s": len(images) / times[-1]}


if __name__ == "__main__":
    main()
