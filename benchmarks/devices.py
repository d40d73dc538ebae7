"""Compare training on several virtual devices with training on one: losses and speed.

    python benchmarks/devices.py

Trains the same model (DeepViT, which has batch normalization over attention maps) on the same
batches on 1, 2, 4 and 8 virtual CPU devices under JAX (the last also as four copies of two parts),
1 and 2 under TensorFlow, and in 1 and 2 processes under PyTorch. Prints the largest relative
difference of a loss of an epoch from that of one device, and images per second without the first
epoch. All devices share the cores of the machine, so the speed shows what the distribution costs,
not what more devices gain.
"""

import argparse
import json
import os
import subprocess
import sys
import time

# Copies of the model, or copies x parts of each.
RUNS = {
    "jax": ("1", "2", "4", "8", "4x2"),
    "tensorflow": ("1", "2"),
    "torch": ("1", "2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=4, help="blocks")
    parser.add_argument("--dim", type=int, default=64, help="width of a token")
    parser.add_argument("--batch", type=int, default=64, help="images per step, on all devices")
    parser.add_argument("--steps", type=int, default=8, help="steps per epoch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--backends", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--measure", metavar="DEVICES", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments)
        return

    from rich.console import Console
    from rich.table import Table

    title = f"DeepViT, {arguments.depth} blocks, width {arguments.dim}, batch {arguments.batch}"
    table = Table("backend", "devices", "loss difference", "images/s", "ratio", title=title)
    for backend in arguments.backends:
        one = None
        for devices in RUNS[backend]:
            losses, rate = measured(backend, devices)
            one = one or (losses, rate)
            difference = max(abs(a - b) / b for a, b in zip(losses, one[0], strict=True))
            cells = (f"{difference:.1e}", f"{rate:.0f}", f"{rate / one[1]:.2f}")
            table.add_row(backend, devices, *cells)
        table.add_section()
    Console().print(table)


def measured(backend, devices):
    start = [sys.executable]
    if backend == "torch":
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", devices]
    process = subprocess.run(
        [*start, __file__, *sys.argv[1:], "--measure", devices],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(process.stderr)
    return json.loads(process.stdout.splitlines()[-1])


def measure(arguments):
    import keras
    import numpy as np

    import keras_vitx as kv

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, devices)

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])
            self.end = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            times.append(self.end - self.start)

    copies, _, parts = arguments.measure.partition("x")
    kv.training.use_devices(int(copies) * int(parts or 1), int(parts or 1))
    keras.utils.set_random_seed(0)
    random, count = np.random.default_rng(0), arguments.batch * arguments.steps
    source = random.integers(0, 256, (count, 32, 32, 3), "uint8"), np.arange(count) % 10
    size = {"dim": arguments.dim, "depth": arguments.depth, "num_heads": 4, "patch_size": 8}
    model = kv.DeepViT(**size, input_shape=(32, 32, 3), classes=10)
    times = []
    history = kv.fit(
        model,
        source,
        epochs=arguments.epochs,
        batch_size=arguments.batch,
        validation_split=0,
        callbacks=[Times()],
        verbose=0,
    )
    if kv.training.is_chief():
        rate = count * (arguments.epochs - 1) / sum(times[1:])
        print(json.dumps([history.history["loss"], rate]))


if __name__ == "__main__":
    main()
