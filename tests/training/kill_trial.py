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

EPOCHS, STEPS = 5, 20
SAVE_EVERY = 4
# Time of a step beyond its own, so that an epoch lasts some seconds.
PAUSE = 0.05


def train(folder: Path) -> None:
    """Train to the end, or until this process is killed."""
    import keras

    import keras_vitx as kv

    class Pause(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            (folder / "alive").touch()
            time.sleep(PAUSE)

    keras.utils.set_random_seed(0)
    images = np.random.default_rng(0).integers(0, 255, (STEPS * 8, 16, 16, 3)).astype("uint8")
    model = kv.RefinedViT(
        16, 2, 2, expansion=2, patch_size=4, input_shape=(16, 16, 3), classes=4, dropout=0.2,
        drop_path=0.2,
    )  # fmt: skip
    kv.fit(
        model, (images, np.arange(len(images)) % 4), epochs=EPOCHS, batch_size=8,
        validation_split=0, warmup_epochs=1, ema=0.9, mixup=0.5, cutmix=0.5, clip_norm=1.0,
        augmentation="random_resized_crop", precision="mixed_float16", output=folder / "run",
        save_every=SAVE_EVERY, resume=True, callbacks=[Pause()], verbose=0,
    )  # fmt: skip


def life(folder: Path, seconds: float | None) -> bool:
    """Run a process, and kill it so long after its first step; return whether it finished."""
    (folder / "alive").unlink(missing_ok=True)
    with (folder / "log").open("a") as log:
        command = [sys.executable, __file__, "--train", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        if seconds is not None:
            while not (folder / "alive").exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(seconds)
            process.kill()
        code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError((folder / "log").read_text()[-2000:])
    return code == 0


def results(folder: Path) -> dict[str, np.ndarray]:
    """Return all numbers of a finished run but the times."""
    from keras_vitx.training.checkpoints import read_state

    state = read_state(sorted((folder / "run" / "checkpoints").glob("step-*"))[-1])
    numbers = {f"state/{name}": array for name, array in state["arrays"].items()}
    best = state["callbacks"]["KeepBest"]["values"]
    numbers |= {f"result/{i}": array for i, array in enumerate(best)}
    for name, value in state["random"].items():
        numbers[f"random/{name}"] = np.array(str(value))
    rows = list(csv.DictReader((folder / "run" / "history.csv").open()))
    for row in rows:
        for name in row.keys() - {"seconds", "images_per_second"}:
            numbers[f"history/{row['epoch']}/{name}"] = np.array(float(row[name]))
    return numbers


def main() -> None:
    """Print a table with one row per kill, and whether the results are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train)
        return
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder, "whole"), Path(folder, "parts")
        whole.mkdir()
        parts.mkdir()
        life(whole, None)
        print("| kill | seconds after the first step | last checkpoint: epoch, step |")
        print("|---|---|---|")
        # On average, all lives but the last take nine tenths of the steps.
        longest = 2 * 0.9 * EPOCHS * STEPS * PAUSE / arguments.kills
        for kill in range(arguments.kills):
            seconds = moments.uniform(0, longest)
            if life(parts, seconds):
                print(f"finished before kill {kill + 1}")
                break
            files = sorted((parts / "run" / "checkpoints").glob("step-*"))
            step = int(files[-1].stem.removeprefix("step-"))
            row = f"| {kill + 1} | {seconds:.2f} | {step // STEPS + 1}, {step % STEPS + 1} |"
            print(row, flush=True)
        life(parts, None)
        one, other = results(whole), results(parts)
        assert one.keys() == other.keys()
        differ = [name for name in one if not np.array_equal(one[name], other[name])]
        backend = os.environ.get("KERAS_BACKEND")
        print(f"{backend}: {len(one)} results, {len(differ)} differ {differ[:5]}")
        sys.exit(bool(differ))


if __name__ == "__main__":
    main()
