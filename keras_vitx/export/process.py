"""Python processes that run TensorFlow, independent of the current backend."""

import importlib.util
import os
import subprocess
import sys
import textwrap

from keras_vitx.text import needs_extra


def require_tensorflow() -> None:
    """Check that TensorFlow is installed, without importing it.

    Raises:
        ImportError: if it is not.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            needs_extra("A SavedModel needs TensorFlow, which is not installed", "export")
        )


def run_python(*arguments: str | os.PathLike) -> None:
    """Run Python with `arguments` in a new process and wait for it.

    The process inherits `sys.path`. In it Keras runs on TensorFlow, on the CPU, since the
    current process may hold the memory of the accelerator.

    Raises:
        ChildProcessError: if it fails, with the last line of its standard error. The full
            standard error is attached as a note.
    """
    environment = {
        **os.environ,
        # "" means the current folder, e.g. in a notebook.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = subprocess.run(
        [sys.executable, "-P", *arguments],
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
        error = ChildProcessError(f"The TensorFlow process failed: {reason}")
        error.add_note(written)
        raise error
