"""`keras-vitx check`: image files that can't be decoded."""

from pathlib import Path

import typer

from keras_vitx.cli._images import Images, files_of
from keras_vitx.cli._options import Backend, Json


def main(images: Images, json: Json = False, backend: Backend = None) -> None:
    """Decode every image once, and list those that can't be decoded; then the exit code is 1.

    Training replaces such an image by another one of its batch, and evaluation leaves it out;
    both log it.
    """
    from keras_vitx.cli._output import say, show_json
    from keras_vitx.data.sources.folders import image_files, unreadable

    unknown: list[Path] = []
    for folder in images:
        if folder.is_dir():
            image_files(folder, unknown)
    paths = files_of(images)
    errors = {str(path): str(error) for path, error in unreadable(paths).items()}
    errors |= {str(path): f"{path} is of a kind that Pillow can't read here." for path in unknown}
    if json:
        show_json({"images": len(paths) + len(unknown), "errors": errors})
    else:
        for error in errors.values():
            say(error)
        typer.echo(f"{len(paths) + len(unknown):,} images, {len(errors):,} can't be decoded.")
    if errors:
        raise typer.Exit(1)
