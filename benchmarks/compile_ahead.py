"""What XLA compiles for a TPU v5e or an H100, on a machine that has neither.

    pip install "jax==0.10.2" "libtpu==0.0.42.*"               # v5e
    pip install --no-compile "jax[cuda13]==0.11.2"             # h100, 5 GB, Python 3.12
    KERAS_BACKEND=jax python benchmarks/compile_ahead.py --output results.jsonl \
        --models ViT_S --cells v5e/step/mixed_bfloat16/{256,64} v5e-4/step/mixed_bfloat16/256
    python benchmarks/compile_ahead.py --output results.jsonl --models   # the tables only

A cell is DEVICE/WORK/PRECISION/BATCH, with /products or /remat for what is recomputed. DEVICE is
v5e, v5e-4 (each has all weights), v5e-4-shards (each has a part), h100 or cpu; WORK is step (of
training) or inference; BATCH counts the images of all devices. Each is compiled in a process of its
own, in one to five minutes; what `--output` has is skipped.

`flops` are those of products and convolutions as traced, without cuDNN's attention on an h100,
`memory` the bytes of a device, `moved` those that kernels read and write in padded layouts,
`copied` of kernels that only move or convert data, `seconds` of a step by the TPU compiler's
estimate of cycles, `sent` bytes of collectives.
"""

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

MODELS = ["ViT_S", "CaiT_XXS24", "CaiT_S24", "ConViT_S", "DeepViT_S", "RefinedViT_S"]
MODELS += ["CBViT_S", "PiT_B", "Mixer_B16"]
DEVICES = {"v5e": 1, "h100": 1, "v5e-4": 4, "v5e-4-shards": 4, "cpu": 1}
PRECISIONS = "mixed_bfloat16", "float32", "mixed_float16"
CELLS = [  # Those that decide come first. A TPU has no float16.
    f"{device}/{work}/{precision}/{batch}{remat}"
    for precision in PRECISIONS
    for remat in ("", "/products", "/remat")
    for work in ("step", "inference")
    for batch in ("256", "64")
    for device in ("v5e", "h100", "v5e-4", "v5e-4-shards")
    if precision != "mixed_float16" or device == "h100"
    if not (work == "inference" and remat)
]
CELL = rf"({'|'.join(DEVICES)})/(step|inference)/({'|'.join(PRECISIONS)})/([1-9]\d*)(/\w+)?"
CYCLES = 1.5e9  # Of a v5e, per second: 197 TFLOP/s by four units of 128 x 128 multiplications.
# An H100, as XLA describes it.
H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 core_count: 132
    shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
    fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
    block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
    clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
    cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
    registers_per_block_limit: 65536 } platform_name: "CUDA"
    dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H100 80GB HBM3" """

COLLECTIVES = r"(all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(-start)?"
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
NO_KERNELS = r"parameter|constant|.*tuple.*|bitcast|while|call|after-all|opt-barrier|.*-done"
MOVES = r"parameter|constant|bitcast|tuple|reshape|convert|broadcast|pad|transpose|concatenate"
MOVES += "|copy.*|.*slice.*|fusion.*"


def a_cell(text):
    match = re.fullmatch(CELL, text)
    if match and int(match[4]) % DEVICES[match[1]] == 0:
        return text
    raise argparse.ArgumentTypeError(f"must match {CELL}, for equal shards. Received: {text!r}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file of JSON lines, added to")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--cells", nargs="+", type=a_cell, default=CELLS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.models[0], options.cells[0])))
        return
    import keras_vitx as kv

    if unknown := set(options.models) - set(kv.list_models()):
        parser.error(f"argument --models: must be of `kv.list_models()`. Received: {unknown}.")
    failed = []
    for cell, model in itertools.product(options.cells, options.models):
        if (model, cell) in results_of(options.output):
            continue
        one = ["--models", model, "--cells", cell, "--one", "--output", options.output]
        done = subprocess.run([sys.executable, __file__, *one], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            failed.append(f"{model} {cell}")
            continue
        with options.output.open("a") as file:
            file.write(done.stdout.splitlines()[-1] + "\n")
    print(tables(results_of(options.output)))
    if failed:
        raise SystemExit(f"These failed, and the next run tries them again: {', '.join(failed)}.")


def results_of(path):
    lines = path.read_text().splitlines() if path.exists() else ()
    return {(line["model"], line["cell"]): line for line in map(json.loads, lines)}


def measure(name, cell):
    """Compile one cell for its device; return what the compiled program says."""
    device, work, precision, batch, how = re.fullmatch(CELL, cell).groups()
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ |= {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    if device == "h100":  # Choosing between kernels needs the GPU.
        os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 " + os.environ.get("XLA_FLAGS", "")
    import jax
    import keras

    import keras_vitx as kv

    keras.config.set_dtype_policy(precision)
    model = kv.create_model(name, drop_path=0.1)
    model.remat = {"/products": "products", "/remat": True}.get(how, False)
    function, state, data = work_of(model, work, int(batch))
    layouts = layouts_of(device, (state, data))
    kind = {"h100": "gpu", "cpu": "cpu"}.get(device, "tpu")
    jax.default_backend = lambda: kind  # The layers take the paths of the device.
    shapes = jax.tree.map(
        lambda one, layout: jax.ShapeDtypeStruct(tuple(one.shape), one.dtype, sharding=layout),
        *((state, data), layouts),
    )
    step = {"donate_argnums": 0, "out_shardings": (None, layouts[0])} if work == "step" else {}
    traced, start = jax.jit(function, **step).trace(*shapes), time.perf_counter()
    result = {"model": name, "cell": cell, "jax": jax.__version__, "flops": flops_of(traced.jaxpr)}
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        return result | {"refused": str(error)[:2000]}
    result["compiled_in"] = round(time.perf_counter() - start)
    memory, text = compiled.memory_analysis(), compiled.as_text()
    result["memory"] = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    result["memory"] += memory.output_size_in_bytes - memory.alias_size_in_bytes  # The new state.
    return result | described(text)


def work_of(model, work, batch):
    """Return a function of variables and data, and those; only their shapes are meant."""
    import keras
    import numpy as np

    import keras_vitx as kv

    images, labels = keras.KerasTensor((batch, *model.input_shape[1:])), np.zeros(batch, "int32")
    state = model.trainable_variables, model.non_trainable_variables
    if work == "inference":
        return lambda state, x: model.stateless_call(*state, x, training=False)[0], state, images
    optimizer = kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    some = np.zeros((2, *images.shape[1:]), "float32")
    model._symbolic_build(data_batch=(some, labels[:2]))
    state = *state, model.optimizer.variables, model.metrics_variables
    return model.train_step, state, (images, labels)


def layouts_of(device, arguments):
    """Return where variables and data lie; several devices are used by Keras from now on."""
    import jax
    import keras
    from jax.experimental.topologies import get_topology_desc

    from keras_vitx.training.devices import ShardedWeights

    names, target = ("v5e:2x2", "tpu"), {}
    if device == "h100":
        names, target = ("h100", "cuda"), {"topology": "1x1x1", "target_config": H100}
    devices = jax.devices() if device == "cpu" else get_topology_desc(*names, **target).devices
    if DEVICES[device] == 1:
        return jax.tree.map(lambda _: jax.sharding.SingleDeviceSharding(devices[0]), arguments)
    engine = ShardedWeights if "shards" in device else keras.distribution.DataParallel
    keras.distribution.set_distribution(engine := engine(devices=devices, auto_shard_dataset=False))
    layouts = jax.tree.map(engine.get_variable_layout, arguments[0])
    layouts = layouts, jax.tree.map(lambda one: engine.get_data_layout(one.shape), arguments[1])
    return jax.tree.map(lambda layout: layout.backend_layout, layouts)


def flops_of(jaxpr):
    """Return the FLOPs of the products and convolutions of a traced program."""
    total = 0
    for step in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, params = step.primitive.name, step.params
        if not step.outvars:  # As of a comment in the program.
            continue
        out, *shapes = [one.aval.shape for one in (step.outvars[0], *step.invars)]
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            total += 2 * math.prod(out) * math.prod(shapes[0][axis] for axis in contracted)
        elif name == "conv_general_dilated":
            filters = shapes[1][params["dimension_numbers"].rhs_spec[0]]
            # The gradient of a strided one has zeros between its entries.
            zeros = math.prod(params["lhs_dilation"])
            total += 2 * math.prod(out) * math.prod(shapes[1]) // filters // zeros
        for value in params.values():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if hasattr(getattr(one, "jaxpr", one), "eqns"):
                    total += flops_of(one)
    return total


def size_of(shape, trips=1):
    """Return the bytes of a shape, in tiles; of a stack with one entry per trip, those of one."""
    total = 0
    arrays = re.findall(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?", shape)
    for dtype, *axes, layout in arrays:
        sides, order = ([int(one) for one in text.split(",") if one] for text in axes)
        tile = re.match(r"(?:T\(([\d,]+)\))?", layout)[1] or "1"
        for axis, unit in zip(order, map(int, reversed(tile.split(","))), strict=False):
            sides[axis] = -(-sides[axis] // unit) * unit
        if trips > 1 and sides[:1] == [trips]:
            sides[0] = 1
        if "S(" not in layout:  # The TPU's own memory.
            total += math.prod(sides) * WIDTHS.get(dtype, 4)
    return total


def described(text):
    """Return sums over the kernels that a compiled program runs."""
    computations, shapes, sums, sent = {}, {}, Counter(), {}
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line):
            current = computations.setdefault(entry := head[2], [])  # The entry is the last.
        elif match := re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", line):
            shapes[match[1]] = match[2]
            current.append(match.groups()[1:])

    def add(name, times=1, trips=1):
        for shape, kind, rest in computations[name]:
            called = dict(re.findall(r"(body|condition|to_apply|calls)=%([\w.\-]+)", rest))
            if kind == "while":
                known = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
                limit = {one: rest for _, one, rest in computations[called["condition"]]}
                count = int(known[1] if known else limit["constant"].split(")")[0])
                add(called["body"], times * count, count)
            elif kind == "call":
                add(called["to_apply"], times, trips)
            if re.fullmatch(NO_KERNELS, kind):
                continue
            moved = size_of(shape, trips)
            if kind == "slice-start":
                moved = size_of(shape.split("), ")[1].replace("S(", ""), trips)
            elif not kind.endswith("-start"):  # There, the shape has both sides.
                operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
                moved += sum(size_of(shapes[one], trips) for one in operands)
            inner = [(shape, kind, rest), *computations.get(called.get("calls"), ())]
            sums["moved"] += times * moved
            sums["copied"] += times * moved * all(re.fullmatch(MOVES, one) for _, one, _ in inner)
            sums["fusions"] += times * kind.startswith("fusion")
            if cycles := re.search(r'"estimated_cycles":"(\d+)"', rest):
                sums["seconds"] += times * int(cycles[1]) / CYCLES
            for shape, kind, rest in inner:
                if match := re.fullmatch(COLLECTIVES, kind):  # Several kernels may share one.
                    channel = re.search(r"channel_id=\d+", rest)[0]
                    sent[channel] = match[1], times * size_of(shape.replace("S(", ""))

    add(entry)
    kinds = {kind for kind, _ in sent.values()}
    totals = {kind: sum(size for one, size in sent.values() if one == kind) for kind in kinds}
    return {**sums, "sent": totals}


def tables(results):
    """Return a Markdown table per device: a row per model, a column per cell."""
    text = ""
    for device in DEVICES:
        known = {cell for _, cell in results if cell.startswith(device + "/")}
        if cells := [cell for cell in CELLS if cell in known]:
            names = [cell.split("/", 1)[1].replace("/", ", ") for cell in cells]
            text += " | ".join([f"| {device} | TFLOP | fusions", *names]) + " |\n"
            text += "|---" * (len(cells) + 3) + "|\n"
            for model in MODELS:
                found = [results.get((model, cell)) for cell in cells]
                if first := next(filter(None, found), None):
                    head = f"| {model} | {first['flops'] / 1e12:.2f} | {first.get('fusions', '')}"
                    text += " | ".join([head, *map(entry_of, found)]) + " |\n"
            text += "\n"
    return text + f"There are {len(CELLS)} cells; what has no entry was not run.\n"


def entry_of(line):
    """Return the entry of a table for a line of the results."""
    if not line or "refused" in line:
        return "refused: " + line["refused"][:80] if line else ""
    entry = [f"{line['memory'] / 1e9:.1f} GB", f"{line['moved'] / 1e9:.0f} GB"]
    entry += [f"{1e3 * line.get('seconds', 0):.0f} ms"] * ("seconds" in line)
    return ", ".join([*entry, *(f"{kind} {n / 1e6:.0f} MB" for kind, n in line["sent"].items())])


if __name__ == "__main__":
    main()
