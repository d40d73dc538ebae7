"""`keras-vitx demo`: the main job on real images, in a few minutes on two cores."""

import time
from pathlib import Path
from typing import Annotated

import keras
import numpy as np
import typer
from rich.table import Table

from keras_vitx import analysis, data, export, models, training
from keras_vitx.cli._options import Backend, console, new_run

SIZE = "CaiT_Mini"
WEIGHTS = "cifar10"
PICTURES = 6


def main(
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results. Default: a new one under runs/.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
    backend: Backend = None,
) -> None:
    """Fine-tune the shipped checkpoint, draw its attention, export and verify it."""
    started = time.perf_counter()
    output = output or new_run("demo")
    source = data.open_source("fashion_mnist")
    console.print(
        f"{SIZE} on {keras.backend.backend()}: {source.train.size} training and "
        f"{source.test.size} test images of Fashion-MNIST, epochs: {epochs}."
    )

    keras.utils.set_random_seed(seed)
    rows = []
    for start, weights in ((f"the {WEIGHTS} checkpoint", WEIGHTS), ("random weights", None)):
        console.print(f"\nFrom {start}:")
        network = models.create_model(SIZE, weights=weights)
        folder = output / ("finetuned" if weights else "from_scratch")
        rows.append((start, *_train(network, source, folder, epochs, seed)))
        if weights:
            finetuned = network

    table = Table("start", "accuracy before", "after", "seconds of training")
    for start, before, after, seconds in rows:
        table.add_row(start, f"{before:.1%}", f"{after:.1%}", f"{seconds:.0f}")
    console.print(table)

    picture = _draw(finetuned, source, output / "class_attention.png")
    saved = output / "saved_model"
    exported = export.saved_model(finetuned, saved)
    console.print(
        "SavedModel opened with TensorFlow alone: "
        f"its outputs are within {exported.difference:.1e}.\n\n"
        f"Model     {output / 'finetuned' / 'best.keras'}\n"
        f"History   {output / 'finetuned' / 'history.csv'}\n"
        f"Attention {picture}\n"
        f"Export    {saved}\n"
        f"{time.perf_counter() - started:.0f} seconds in all.",
        highlight=False,
    )


def _train(network, source, folder, epochs, seed):
    """Return the test accuracy before and after, and the seconds between."""
    pipelines = data.pipelines(source, network, seed=seed)
    before = _accuracy(network, pipelines)
    start = time.perf_counter()
    training.fit(network, pipelines, "finetune", output=folder, epochs=epochs)
    seconds = time.perf_counter() - start
    return before, _accuracy(network, pipelines), seconds


def _accuracy(network, pipelines):
    labels = np.concatenate([labels for _, labels in pipelines.test])
    outputs = network.predict(pipelines.test, verbose=0)
    return float(np.mean(outputs.argmax(axis=-1) == labels))


def _draw(network, source, path):
    """Draw a test image of each of the first classes, titled with what it is taken for."""
    labels = source.test.labels
    chosen = [int(np.argmax(labels == label)) for label in range(PICTURES)]
    images = [source.test.images[index] for index in chosen]
    ready = data.preprocess_input(images, network)
    outputs = keras.ops.convert_to_numpy(network(ready))
    titles = [
        f"{source.class_names[index]} ({output[index]:.0%})"
        for output, index in zip(outputs, outputs.argmax(axis=-1), strict=True)
    ]
    return analysis.plot_class_attention(network, ready, path, np.stack(images), titles)
