"""`keras-vitx explore`: an HTML page with the attention maps of a model on images."""

from pathlib import Path

from typer import Option

import keras_vitx as kv
from keras_vitx.cli._options import (
    Backend,
    Images,
    ModelOrFile,
    Overwrite,
    Weights,
    image_files_of,
    open_model,
)
from keras_vitx.cli._output import check_new, say


def main(
    model: ModelOrFile,
    images: Images,
    output: Path = Option(..., "--output", "-o", help="The page to write, .html."),
    weights: Weights = None,
    blocks: str | None = Option(
        None, help="Blocks whose maps are shown, such as 0,11,23. Default: all."
    ),
    heads: str | None = Option(
        None, help="Heads whose maps are shown, such as 0,1, or mean. Default: all."
    ),
    limit: float = Option(15.0, help="The largest size of the page, in MB."),
    overwrite: Overwrite = False,
    backend: Backend = None,
) -> None:
    """Write an HTML page that shows where a model looks.

    The page is one file that needs neither a server nor a network.
    """
    check_new(output, overwrite)
    heads = "mean" if heads == "mean" else _parse_list(heads)
    files = image_files_of(images)
    network = open_model(model, weights, trained=True)
    kv.analysis.explore(
        network, files, output, blocks=_parse_list(blocks), heads=heads, limit=limit
    )
    say(f"Wrote {output}, {output.stat().st_size / 1e6:.1f} MB.")


def _parse_list(text: str | None) -> list[int | str] | None:
    """Return the numbers and names in a text such as `0,11,blocks_token_only_0`."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    return [int(word) if word.isdecimal() else word for word in words]
