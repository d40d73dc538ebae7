"""Kill a training at random moments with SIGKILL, and compare it with one that was not killed.

    KERAS_BACKEND=torch python tests/training/kill_trial.py

A tiny network is trained with everything that has a state: dropout, stochastic depth,
running statistics, augmentation, mixing, a moving average and mixed precision. It is not a
test, because it takes minutes: each life of the process imports and compiles anew.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EPOCHS, STEPS, SAVE_EVERY = 5, 20, 4


def train(directory: Path, precision: str) -> None:
    """Train to the end, or until this process is killed."""
    import keras

    import keras_vitx as kv

    def count(batch, logs):
        with (directory / "steps").open("a") as file:
            file.write(".")

    keras.utils.set_random_seed(0)
    images = np.random.default_rng(0).integers(0, 255, (STEPS * 8, 16, 16, 3)).astype("uint8")
    model = kv.RefinedViT(
        16, 2, 2, expansion=2, patch_size=4, input_shape=(16, 16, 3), classes=4, dropout=0.2,
        drop_path=0.2,
    )  # fmt: skip
    kv.fit(
        model, (images, np.arange(len(images)) % 4), epochs=EPOCHS, batch_size=8,
        validation_split=0, warmup_epochs=1, ema=0.9, mixup=0.5, cutmix=0.5, clip_norm=1.0,
        augmentation="random_resized_crop", precision=precision, output=directory / "run",
        save_every=SAVE_EVERY, resume=True, verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=count)],
    )  # fmt: skip


def life(directory: Path, precision: str, steps: int | None = None, wait: float = 0.0) -> bool:
    """Run a process, and kill it some time after a step; return whether it finished."""
    counted = directory / "steps"
    counted.write_text("")
    with (directory / "log").open("a") as log:
        command = [sys.executable, __file__, "--train", directory, "--precision", precision]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        if steps is not None:
            while counted.stat().st_size < steps and process.poll() is None:
                time.sleep(0.001)
            time.sleep(wait)
            process.kill()
        code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError((directory / "log").read_text()[-2000:])
    return code == 0


def results(directory: Path) -> dict[str, np.ndarray]:
    """Return all numbers of a finished run but the times."""
    from keras_vitx.training.resume import read_last_state

    state = read_last_state(directory / "run" / "checkpoints")
    best = state["callbacks"]["BestCheckpoint"]["values"]
    numbers = dict(enumerate([*state["arrays"], *best]))
    numbers |= {f"random/{name}": np.array(str(value)) for name, value in state["random"].items()}
    for row in csv.DictReader((directory / "run" / "history.csv").open()):
        for name in row.keys() - {"seconds", "images_per_second"}:
            numbers[f"history/{row['epoch']}/{name}"] = np.array(float(row[name]))
    return numbers


def main() -> None:
    """Print a table with one row per kill, and whether the results are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="mixed_float16")
    arguments = parser.parse_args()
    precision = arguments.precision
    if arguments.train is not None:
        train(arguments.train, precision)
        return
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        whole, parts = Path(directory, "whole"), Path(directory, "parts")
        whole.mkdir()
        parts.mkdir()
        life(whole, precision)
        print("| kill | after | last checkpoint |\n|---|---|---|")
        for kill in range(1, arguments.kills + 1):
            # On average, the lives together take less than all steps.
            steps = moments.randint(1, round(1.8 * EPOCHS * STEPS / arguments.kills))
            wait = moments.uniform(0, 0.1)
            if life(parts, precision, steps, wait):
                print(f"finished before kill {kill}")
                break
            last = int(sorted((parts / "run" / "checkpoints").glob("step-*"))[-1].stem[5:])
            where = f"epoch {last // STEPS + 1}, step {last % STEPS + 1}"
            print(f"| {kill} | {steps} steps and {wait:.3f} s | {where} |", flush=True)
        life(parts, precision)
        one, other = results(whole), results(parts)
    differ = [name for name in one | other if not np.array_equal(one.get(name), other.get(name))]
    kind = f"{os.environ.get('KERAS_BACKEND')}, {precision}"
    print(f"{kind}: {len(one)} results, {len(differ)} differ {differ[:5]}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
