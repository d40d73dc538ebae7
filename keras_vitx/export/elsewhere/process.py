"""Python processes that run another backend, or none."""

import os
import subprocess
import sys
import textwrap


def run_python(*arguments: str | os.PathLike, backend: str = "tensorflow") -> None:
    """Run Python with `arguments` in a new process and wait for it.

    The process inherits `sys.path`. In it Keras runs on `backend`, on the CPU, since the
    current process may hold the memory of the accelerator.

    Raises:
        ChildProcessError: if it fails, with the last line of its standard error. The full
            standard error is attached as a note.
    """
    environment = {
        **os.environ,
        # "" means the current folder, e.g. in a notebook.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if process.returncode:
        written = process.stderr.strip()
        reason = written.splitlines()[-1] if written else f"exit status {process.returncode}"
        # Some messages of Keras end with a whole config.
        reason = textwrap.shorten(reason, 300, placeholder=" ...")
        error = ChildProcessError(f"The second process ({backend}) failed: {reason}")
        error.add_note(written)
        raise error
