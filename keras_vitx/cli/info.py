"""`keras-vitx info`: what a size or a file is."""

from rich.table import Table

from keras_vitx import models, weights
from keras_vitx.cli._options import Backend, ModelOrFile, console, open_model


def main(model: ModelOrFile, backend: Backend = None) -> None:
    """Show a model: its size, parameters, checkpoints and preprocessing."""
    network = open_model(model)
    facts = Table(show_header=False, title=model, title_justify="left")
    if model in models.MODELS:
        for name, value in models.constructor_of(model).data.items():
            facts.add_row(name, str(value))
    else:
        facts.add_row("input_shape", str(network.input_shape[1:]))
        facts.add_row("output_shape", str(network.output_shape[1:]))
    facts.add_row("family", str(network.family))
    facts.add_row("parameters", f"{network.count_params():,}")
    for name, value in network.preprocessing.to_dict().items():
        facts.add_row(name, str(value))
    if network.class_names:
        facts.add_row("class names", ", ".join(network.class_names))
    console.print(facts)

    entries = weights.checkpoints_of(model)
    if entries:
        table = Table("checkpoint", "image size", "top-1 %", "classes", "licence", "source")
        for entry in entries:
            top1 = "" if entry.top1 is None else f"{entry.top1:.2f}"
            table.add_row(
                entry.name,
                str(entry.image_size),
                top1,
                str(entry.classes),
                entry.licence,
                entry.source,
            )
        console.print(table)
    elif model in models.MODELS:
        console.print("No public checkpoint of this size is known.")
