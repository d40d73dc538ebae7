"""Kill a training at random moments with SIGKILL, and compare it with one that was not killed.

    KERAS_BACKEND=torch python tests/training/kill_trial.py [PRECISION]

A tiny network is trained with everything that has a state. It is not a test, because it takes
minutes: each life of the process imports and compiles anew.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EPOCHS, STEPS, KILLS = 5, 20, 10


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
        save_every=4, resume=True, verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=count)],
    )  # fmt: skip


def life(directory: Path, precision: str, steps: int | None = None, wait: float = 0.0) -> bool:
    """Run a process, and kill it some time after a step; return whether it finished."""
    directory.mkdir(exist_ok=True)
    counted = directory / "steps"
    counted.write_text("")
    process = subprocess.Popen([sys.executable, __file__, precision, directory])
    if steps is not None:
        while counted.stat().st_size < steps and process.poll() is None:
            time.sleep(0.001)
        time.sleep(wait)
        process.kill()
    if process.wait() not in (0, -signal.SIGKILL):
        raise RuntimeError("The training failed.")
    return process.returncode == 0


def results(directory: Path) -> list[np.ndarray]:
    """Return all numbers of a finished run but the times."""
    from keras_vitx.training.resume import read_last_state

    state = read_last_state(directory / "run" / "checkpoints")
    texts = [str(state[name]) for name in ("random", "history")]
    best = state["callbacks"]["BestCheckpoint"]["values"]
    return [*state["arrays"], *best, *map(np.array, texts)]


def main(precision: str) -> None:
    """Kill the second of two trainings, and print whether their results are equal."""
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        whole, parts = Path(directory, "whole"), Path(directory, "parts")
        life(whole, precision)
        for _ in range(KILLS):
            # On average, the lives together take less than all steps.
            steps = moments.randint(1, round(1.8 * EPOCHS * STEPS / KILLS))
            finished = life(parts, precision, steps, wait := moments.uniform(0, 0.1))
            print(f"killed {wait:.3f} s after {steps} steps" if not finished else "finished")
        life(parts, precision)
        one, other = results(whole), results(parts)
    differ = [i for i, pair in enumerate(zip(one, other, strict=True)) if not np.array_equal(*pair)]
    print(f"{precision}: {len(one)} results, {len(differ)} differ {differ[:5]}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    precision, *directory = sys.argv[1:] or ["mixed_float16"]
    if directory:
        train(Path(*directory), precision)
    else:
        main(precision)
