"""Python processes that run TensorFlow, whatever the backend of this one."""

import importlib.util
import os
import subprocess
import sys
import textwrap

from keras_vitx.text import needs_extra


def require_tensorflow() -> None:
    """Check that TensorFlow is installed, without importing it.

    Raises:
        ImportError: when it is not.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            needs_extra("A SavedModel needs TensorFlow, which is not installed", "export")
        )


def run_python(*arguments: str | os.PathLike) -> None:
    """Run Python with `arguments` in a new process and wait for it.

    The process has this one's `sys.path`, and Keras uses TensorFlow on the CPU there, since
    this process may hold the memory of the accelerator.

    Raises:
        ChildProcessError: when it fails, with the last line of its standard error. The whole
            standard error is a note of the exception.
    """
    environment = {
        **os.environ,
        # "" is the current folder, of a notebook for example.
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
        # Keras ends some messages with a whole config.
        reason = textwrap.shorten(reason, 300, placeholder=" ...")
        error = ChildProcessError(f"The process that runs TensorFlow failed: {reason}")
        error.add_note(written)
        raise error
