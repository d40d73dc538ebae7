"""`keras-vitx demo`: the main workflow on real images, in a few minutes on two cores."""

import time
from pathlib import Path

import numpy as np
from typer import Option

import keras_vitx as kv
from keras_vitx.cli._options import Backend
from keras_vitx.cli._output import check_new_folder, new_run, say, show

SIZE = "CaiT_Mini"
WEIGHTS = "cifar10"
PICTURES = 6


def main(
    output: Path | None = Option(
        None, help="Folder for the results. Default: a new one under runs/."
    ),
    epochs: int = Option(1, help="Passes over the training images.", min=1),
    seed: int = Option(0, help="Seed of weights, order and augmentation."),
    backend: Backend = None,
) -> None:
    """Fine-tune a checkpoint, plot its attention, export it."""
    import keras

    demo_start = time.perf_counter()
    output = output or new_run("demo")
    check_new_folder(output)
    source = kv.data.load_dataset("fashion_mnist")
    say(
        f"{SIZE} on {keras.backend.backend()}: {source.train.size} training and "
        f"{source.test.size} test images of Fashion-MNIST, epochs: {epochs}."
    )

    keras.utils.set_random_seed(seed)
    rows = []
    for start, weights in ((f"the {WEIGHTS} checkpoint", WEIGHTS), ("random weights", None)):
        say(f"\nFrom {start}:")
        network = kv.create_model(SIZE, weights=weights)
        pipelines = kv.data.pipelines(source, network, seed=seed)
        # By index: the checkpoint's classes have other names.
        predictions = network.predict(pipelines.test, verbose=0).argmax(-1)
        before = np.mean(predictions == source.test.labels)
        folder = output / ("finetuned" if weights else "from_scratch")
        fit_start = time.perf_counter()
        history = kv.fit(network, pipelines, "finetune", output=folder, epochs=epochs)
        seconds = time.perf_counter() - fit_start
        rows.append(
            {
                "start": start,
                "accuracy before": f"{before:.1%}",
                "after": f"{history.test['accuracy']:.1%}",
                "seconds of training": f"{seconds:.0f}",
            }
        )
        if weights:
            finetuned = network
    show(rows)

    exported = kv.export(finetuned, output / "saved_model")
    say(
        "SavedModel opened with TensorFlow alone: "
        f"its outputs are within {exported.difference:.1e}.\n\n"
        f"Model     {output / 'finetuned' / 'best.keras'}\n"
        f"History   {output / 'finetuned' / 'history.csv'}\n"
        f"Attention {_draw(finetuned, source, output / 'class_attention.png')}\n"
        f"Export    {output / 'saved_model'}\n"
        f"{time.perf_counter() - demo_start:.0f} seconds in all."
    )


def _draw(network, source, path):
    """Plot the attention on one test image per class, titled with the predicted class."""
    labels = source.test.labels
    images = [source.test.images[np.argmax(labels == label)] for label in range(PICTURES)]
    best = kv.predictor(network)(images, top=1)
    titles = [f"{name} ({probability:.0%})" for ((_, name, probability),) in best]
    inputs = kv.preprocess_input(images, network)
    return kv.analysis.plot_class_attention(network, inputs, path, np.stack(images), titles)
