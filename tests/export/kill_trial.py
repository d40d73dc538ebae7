"""Kill an export with SIGKILL in each of its stages, and look at what it leaves.

    KERAS_BACKEND=torch python tests/export/kill_trial.py --formats torch openvino

An old file is being replaced. After each kill it must still be there, unchanged, or the new
one in its place, whole: a file that changed is opened in its runtime and compared with the model.
The last stage, in which files are renamed, is killed before each rename. In the end, one more
export must remove what the killed ones left. It is not a test, because each life of the process
imports and converts anew.
"""

import argparse
import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = ("fusing", "converting", "verifying")


def make():
    """Return a tiny model, the same in each process."""
    import keras

    import keras_vitx as kv

    keras.utils.set_random_seed(0)
    return kv.CaiT(
        16, 2, 2, class_depth=1, patch_size=8, input_shape=(16, 16, 3), classes=5, layer_scale=0.5
    )


def export(path: Path, format: str, step: int) -> None:
    """Export the model, until this process is killed, by itself before rename number `step`."""
    import keras_vitx as kv

    renamed, count = Path.replace, itertools.count(1)

    def replace(file, place):
        if next(count) == step:
            os.killpg(os.getpid(), signal.SIGKILL)
        return renamed(file, place)

    Path.replace = replace
    kv.export(make(), path, format, overwrite=True)


def digest(path: Path, companions: tuple[str, ...]) -> str:
    """Return a hash of the file or folder at `path`, with its companions."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    files += [path.with_suffix(each) for each in companions]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def is_whole(path: Path) -> bool:
    """Return whether a file opens in its runtime and its outputs are the model's."""
    import keras_vitx as kv

    try:
        kv.export.verify(path, make())
    except (OSError, ValueError) as error:
        print(error)
        return False
    return True


def life(path: Path, format: str, stage: str | None, wait: float = 0.0, step: int = 0) -> bool:
    """Run an export, and kill it some time after a stage began; return whether it finished."""
    command = [sys.executable, __file__, "--export", str(path), "--formats", format]
    command += ["--step", str(step)]
    log = path.with_name("log")
    # In a group of its own, so that the second process is killed, too.
    with (
        log.open("w") as file,
        subprocess.Popen(command, stderr=file, start_new_session=True) as process,
    ):
        while process.poll() is None:
            if stage and f"export: {stage}" in log.read_text():
                time.sleep(wait)
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        return process.wait() == 0


def main() -> None:
    """Kill each stage `--kills` times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=["torch", "openvino"])
    parser.add_argument("--kills", type=int, default=2, help="per stage")
    parser.add_argument("--step", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        export(arguments.export, arguments.formats[0], arguments.step)
        return
    from keras_vitx.export.formats import FORMATS

    for format in arguments.formats:
        kind = FORMATS[format]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"model{kind.suffix}")
            assert life(path, format, None), "the first export failed"
            before = sorted(each.name for each in Path(folder).iterdir())
            lives = [
                (stage, random.uniform(0, 3), 0) for stage in STAGES for _ in range(arguments.kills)
            ]
            lives += [(None, 0.0, step) for step in range(1, 10)]
            for stage, wait, step in lives:
                old = digest(path, kind.companions)
                finished = life(path, format, stage, wait, step)
                state = "old" if digest(path, kind.companions) == old else "new"
                assert state == "old" or is_whole(path), "neither the old file nor a new one"
                when = f"{stage} + {wait:.1f} s" if stage else f"before rename {step}"
                print(f"{format}, {when}: {'finished' if finished else state}", flush=True)
                if step and finished:
                    break
            left = sorted(each.name for each in Path(folder).iterdir())
            assert left == before, left


if __name__ == "__main__":
    main()
