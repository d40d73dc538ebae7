"""Kill a training at random moments with SIGKILL, and compare it with one that was not killed.

    KERAS_BACKEND=torch python tests/training/kill_trial.py [PRECISION]

A tiny network is trained with everything that has a state. `test_restart.py` kills it three times;
this takes minutes, as each life of the process imports and compiles anew.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import keras_vitx as kv
from keras_vitx.training.restart import read_state

EPOCHS, STEPS, KILLS = 3, 4, 10


def train(output, precision="float32", callbacks=(), seed=0):
    """Train to the end, from weights of `seed` unless the run in `output` continues."""
    keras.utils.set_random_seed(seed)
    random_images = np.random.default_rng(0).integers(0, 255, (STEPS * 8, 16, 16, 3), "uint8")
    model = kv.RefinedViT(
        16, 2, 2, expansion=2, patch_size=4, input_shape=(16, 16, 3), classes=4, dropout=0.2,
        drop_path=0.2,
    )  # fmt: skip
    return kv.fit(
        model, (random_images, np.arange(STEPS * 8) % 4), epochs=EPOCHS, batch_size=8,
        validation_split=0.2, warmup_epochs=1, ema=0.9, mixup=0.5, cutmix=0.5, clip_norm=1.0,
        steps_per_epoch=STEPS, augmentation="random_resized_crop", precision=precision,
        output=output, resume=True, callbacks=callbacks,
    )  # fmt: skip


def results(output):
    """Return all numbers of a finished run, and the names of its files."""
    state, record = read_state(output / "restart.safetensors"), (output / "run.json").read_text()
    table = (output / "history.csv").read_text()
    return [
        *keras.tree.flatten(state),
        record,
        table,
        *sorted(each.name for each in output.iterdir()),
    ]


def main(precision):
    """Kill the second of two trainings at random, and print whether their results are equal."""
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        for name, kills in (("whole", 0), ("parts", KILLS)):
            for life in range(kills + 1):
                process = subprocess.Popen([sys.executable, __file__, precision, directory, name])
                if life < kills:
                    time.sleep(moments.uniform(5, 25))
                    process.kill()
                if process.wait() not in (0, -signal.SIGKILL):
                    raise RuntimeError("The training failed.")
        one, other = (results(Path(directory, name)) for name in ("whole", "parts"))
    differ = sum(not np.array_equal(*pair) for pair in zip(one, other, strict=True))
    print(f"{precision}: {len(one)} results, {differ} differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(Path(*sys.argv[2:]), sys.argv[1])
    else:
        main(*sys.argv[1:] or ["mixed_float16"])
