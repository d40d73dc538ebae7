"""What the package does on a GPU or a TPU, in one run of at most 25 minutes.

    KERAS_BACKEND=torch python benchmarks/accelerator.py --output h100.jsonl
    KERAS_BACKEND=jax python benchmarks/accelerator.py --sections ceilings steps
    python benchmarks/accelerator.py --toy          # the same code at toy sizes, on any CPU

Each section runs in a process of its own, so that an error in one leaves the others; every
result is a line of JSON, printed and written when it is there.

ceilings      what the device reaches: bytes copied and bfloat16 products per second
correctness   each family and precision, logits and gradients, against float64 on the CPU; under
              PyTorch also the number of times that a step waits for the device
steps         time and memory of a training step beside timm's under autocast, and the share of
              the bound by bytes and FLOPs (docs/devices.md)
kernels       the same with each kernel of `keras_vitx/layers/kernels/` replaced by its plain form
memory        the same with `remat`, and without the loop over depth
fit           images per second of `kv.fit`, beside those of its step alone
"""

import argparse
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

SECTIONS = ("ceilings", "correctness", "steps", "kernels", "memory", "fit")
MODELS = {
    "ViT_S": "deit_small_patch16_224",
    "CaiT_S24": "cait_s24_224",
    "ConViT_S": "convit_small",
    "DeepViT_S": None,
    "RefinedViT_S": None,
}
FAMILIES = ("ViT_Ti", "CaiT_XXS24", "ConViT_Ti", "DeepViT_S", "RefinedViT_S", "CBViT_Ti", "PiT_B")
TOYS = ("CaiT_Mini", "RefinedViT_Mini")
# Lower bounds of a training step in bfloat16 at batch 256, in ms on an H100 (docs/devices.md).
BOUNDS = {"ViT_S": 20, "CaiT_S24": 77, "ConViT_S": 28, "DeepViT_S": 40, "RefinedViT_S": 127}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", help="file of JSON lines, to which results are added")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--minutes", type=float, default=25, help="limit of the whole run")
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a CPU")
    parser.add_argument("--section", choices=(*SECTIONS, "reference"), help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        globals()[options.section](options)
        return
    end, failed = time.monotonic() + 60 * options.minutes, []
    with tempfile.TemporaryDirectory() as directory:
        for section in options.sections:
            error = ""
            if section == "correctness":
                on_cpu = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
                error = run("reference", directory, options, end, on_cpu)
            if error := error or run(section, directory, options, end):
                failed.append(section)
                record(options.output, {"section": section, "error": error})
    if failed:
        raise SystemExit(f"These sections failed: {', '.join(failed)}.")


def run(section, directory, options, end, environment=None):
    """Run a section in its own process; return the end of its error, if it fails."""
    command = [sys.executable, __file__, "--section", section, "--directory", directory]
    command += ["--toy"] * options.toy
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    record(options.output, {"section": section, **json.loads(line)})
                if time.monotonic() > end:
                    process.kill()
                    return f"--minutes {options.minutes:g} are over"
            process.wait()
        finally:
            process.kill()
        errors.seek(0)
        return errors.read()[-2000:] if process.returncode else ""


def record(output, result):
    line = json.dumps(result)
    print(line, flush=True)
    if output:
        with open(output, "a") as file:
            file.write(line + "\n")


def emit(**result):
    """Hand a result to the process that writes it."""
    print(json.dumps(result), flush=True)


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


def peak_memory(reset=False):
    """Return the largest number of bytes in use on the device, or None if it is not known."""
    if on_gpu():
        import torch

        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if backend() == "jax":
        import jax

        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return None


def ceilings(options):
    from keras import ops

    size, bytes_ = (256, 1 << 20) if options.toy else (8192, 1 << 30)
    x = ops.ones((bytes_ // 4,), "float32")
    emit(GB_per_s=2 * bytes_ / seconds(lambda: x + 1.0, 10) / 1e9)
    a = ops.ones((size, size), "bfloat16")
    emit(TFLOP_per_s=2 * size**3 / seconds(lambda: ops.matmul(a, a), 10) / 1e12)


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


def reference(options):
    import keras
    import numpy as np

    import keras_vitx as kv

    keras.config.set_dtype_policy("float64")
    for name in TOYS if options.toy else FAMILIES:
        keras.utils.set_random_seed(0)
        model = kv.create_model(name, drop_path=0.0, classifier_activation=None)
        for variable in model.trainable_variables:
            # At the start, its maps are uniform up to the rounding of half precision.
            if name.startswith("Refined") and "qkv/kernel" in variable.path:
                variable.assign(variable * 10)
        weights = model.get_weights()
        logits, changes = logits_and_changes(model)
        arrays = {f"weights{i:04}": weight for i, weight in enumerate(weights)}
        path = Path(options.directory, f"{name}.npz")
        np.savez(path, logits=logits, changes=changes, **arrays)


def correctness(options):
    import keras
    import numpy as np

    import keras_vitx as kv

    for name in TOYS if options.toy else FAMILIES:
        saved = np.load(Path(options.directory, f"{name}.npz"))
        for precision in PRECISIONS:
            keras.config.set_dtype_policy(precision)
            model = kv.create_model(name, drop_path=0.0, classifier_activation=None)
            model.set_weights([saved[key] for key in sorted(saved) if key.startswith("weights")])
            found = logits_and_changes(model)
            wanted = saved["logits"], saved["changes"]
            errors = [
                float(np.linalg.norm(a - b) / np.linalg.norm(b))
                for a, b in zip(found, wanted, strict=True)
            ]
            result = {"logits": errors[0], "gradients": errors[1], "waits": waits_of(model)}
            emit(model=name, precision=precision, **result)


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


def compiled(model):
    import keras_vitx as kv

    optimizer = kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def measure_step(options, name, count, scan=True, **arguments):
    """Return the time and the peak memory of a training step of a model of ours."""
    import keras

    import keras_vitx as kv

    keras.config.set_dtype_policy("mixed_bfloat16")
    model = compiled(kv.create_model(name, **arguments))
    model.scan = scan
    batch = as_tensors(batch_of(model, count))
    peak_memory(reset=True)
    repeats = 1 if options.toy else 10
    return seconds(lambda: model.train_on_batch(*batch), repeats), peak_memory()


def measure_timm(options, name, count):
    """Return the time and the peak memory of a training step of timm's model under autocast."""
    import timm
    import torch

    device = "cuda" if on_gpu() else "cpu"
    model = timm.create_model(name, drop_path_rate=0.1).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    images = torch.randn(count, 3, 224, 224, device=device)
    labels = torch.zeros(count, dtype=torch.int64, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    peak_memory(reset=True)
    return seconds(step, 10), peak_memory()


def tried(function, *arguments, **keywords):
    """Return the result of a measurement, or the error that ended it, such as a lack of memory."""
    try:
        time_, memory = function(*arguments, **keywords)
        return {"ms": 1000 * time_, "peak_MB": memory and memory / 1e6}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def sizes(options):
    return TOYS if options.toy else tuple(MODELS)


def steps(options):
    for count in (2,) if options.toy else (64, 256):
        for name in sizes(options):
            result = tried(measure_step, options, name, count)
            bound = BOUNDS.get(name, 0) * count / 256
            if bound and "ms" in result:
                result["share_of_bound"] = bound / result["ms"]
            emit(model=name, batch=count, ours=result)
            peer = MODELS.get(name)
            if peer and backend() == "torch":
                emit(model=name, batch=count, timm=tried(measure_timm, options, peer, count))


@contextlib.contextmanager
def plain(kernel):
    """Let the plain form of an operation run in place of its kernel."""
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


def kernels(options):
    from keras_vitx.layers import ops

    count, names = (2, TOYS[:1]) if options.toy else (64, ("CaiT_S24", "RefinedViT_S"))
    for name in names:
        emit(model=name, batch=count, all_kernels=tried(measure_step, options, name, count))
        for kernel in ops.KERNELS.get(backend(), ()):
            with plain(kernel):
                result = tried(measure_step, options, name, count)
            emit(model=name, batch=count, without=kernel, **result)


def memory(options):
    count, names = (2, TOYS[:1]) if options.toy else (64, ("CaiT_S24", "RefinedViT_S"))
    for name in names:
        for how in ({}, {"remat": True}, {"scan": False}):
            emit(model=name, batch=count, **how, **tried(measure_step, options, name, count, **how))


def fit(options):
    import keras
    import numpy as np

    import keras_vitx as kv

    name, count, batches = ("ViT_Mini", 8, 3) if options.toy else ("ViT_S", 256, 20)
    step = tried(measure_step, options, name, count)
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = kv.create_model(name)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count * batches, *model.input_shape[1:]), "uint8")
    ends = []

    class Times(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.perf_counter())

    source = images, np.arange(len(images)) % 10
    settings = {"epochs": 1, "batch_size": count, "validation_split": 0, "verbose": 0}
    kv.fit(model, source, callbacks=[Times()], **settings)
    rate = count * (len(ends) - 2) / (ends[-1] - ends[1])
    emit(model=name, batch=count, fit_images_per_s=rate, step=step)


if __name__ == "__main__":
    main()
