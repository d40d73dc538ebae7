"""Kill an export with SIGKILL in each of its stages, and look at what it leaves.

    KERAS_BACKEND=torch python tests/export/kill_trial.py --formats torch openvino

An old file is being replaced. After each kill it must still be there, unchanged, or the new
one in its place, whole; a path may never hold half a file. It is not a test, because
each life of the process imports and converts anew.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = ("fusing", "converting", "verifying")


def export(path: Path, format: str) -> None:
    """Export a tiny model, until this process is killed."""
    import keras_vitx as kv

    model = kv.CaiT(
        16, 2, 2, class_depth=1, patch_size=8, input_shape=(16, 16, 3), classes=5, layer_scale=0.5
    )
    kv.export(model, path, format, overwrite=True)


def digest(path: Path, companions: tuple[str, ...]) -> str:
    """Return a hash of the file or folder at `path`, with its companions."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    files += [path.with_suffix(each) for each in companions]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def life(path: Path, format: str, stage: str | None, wait: float = 0.0) -> bool:
    """Run an export, and kill it some time after a stage began; return whether it finished."""
    command = [sys.executable, __file__, "--export", str(path), "--formats", format]
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
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        export(arguments.export, arguments.formats[0])
        return
    from keras_vitx.export.formats import FORMATS

    for format in arguments.formats:
        kind = FORMATS[format]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"model{kind.suffix}")
            assert life(path, format, None), "the first export failed"
            old = digest(path, kind.companions)
            for stage in STAGES:
                for _ in range(arguments.kills):
                    wait = random.uniform(0, 3)
                    finished = life(path, format, stage, wait)
                    # An export that finished before the kill replaced the file by an equal one.
                    kept = finished or digest(path, kind.companions) == old
                    if finished:
                        old = digest(path, kind.companions)
                    left = sorted(each.name for each in Path(folder).iterdir())
                    print(f"{format}, {stage} + {wait:.1f} s: kept={kept}, {left}", flush=True)
                    assert kept


if __name__ == "__main__":
    main()
