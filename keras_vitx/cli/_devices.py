"""The option `--devices`."""

import logging
import os
import sys
from typing import Annotated

import typer

import keras_vitx as kv

Devices = Annotated[
    str | None,
    typer.Option(
        help="Number of devices that share each batch, on all machines, or 'all'. Under PyTorch, "
        "one process per device is started. Default: one device."
    ),
]


def use(devices: str | None) -> None:
    """Use the devices that the option names, before a model is made.

    Under PyTorch, this process is replaced by `torchrun` with the same command, once.
    """
    import keras

    if devices is None:
        return
    if devices != "all" and not (devices.isdecimal() and int(devices)):
        raise ValueError(f"`--devices` must be 'all' or at least 1. Received: {devices!r}.")
    count = "all" if devices == "all" else int(devices)
    if keras.backend.backend() == "torch" and "LOCAL_RANK" not in os.environ:
        count = _processes(count)
        if count > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            command = [sys.executable, *launch, "-m", "keras_vitx.cli", *sys.argv[1:]]
            os.execv(sys.executable, command)
    kv.training.use_devices(count)
    if not kv.training.is_chief():
        logging.getLogger("keras_vitx").setLevel(logging.ERROR)


def _processes(count):
    """Return the number of processes to start: one per GPU, or on a CPU at most one per core."""
    import torch

    gpus = torch.cuda.device_count()
    if count == "all":
        return gpus or 1
    there = gpus or os.cpu_count()
    if count > there:
        kind = "GPUs" if gpus else "CPU cores"
        raise ValueError(
            f"`--devices` must be at most {there}, the number of {kind}. Received: {count}."
        )
    return count
