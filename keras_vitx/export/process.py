"""Work in another Python process, under TensorFlow whatever backend is in use here."""

import importlib.util
import os
import subprocess
import sys
import textwrap

from keras_vitx.text import needs_extra


def require_tensorflow() -> None:
    """See to it that TensorFlow can be imported, without importing it.

    Raises:
        ImportError: when it is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            needs_extra("A SavedModel needs TensorFlow, which is not installed", "export")
        )


def run_python(*arguments: str | os.PathLike) -> None:
    """Run Python with `arguments` in a new process, and wait.

    It finds the packages that this process finds, but not the folder it is
    started in. TensorFlow is Keras's backend there and runs on the CPU: the
    accelerator's memory belongs to this process.

    Raises:
        ChildProcessError: when it fails, with the last line of what it wrote to
            its standard error. The rest of that is a note of the error.
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
