import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")


@pytest.fixture(scope="session")
def photographs():
    """Paths of photographs of several sizes, from scikit-image's wheel."""
    found = importlib.util.find_spec("skimage")
    if found is None:
        pytest.skip("scikit-image, whose photographs are used, is not installed")
    return [Path(found.origin).parent / "data" / name for name in PHOTOGRAPHS]


@pytest.fixture(scope="session")
def timm_transform(timm):
    return timm.data.create_transform


@pytest.fixture
def make_model():
    """The attributes that data/ reads of a model, without a model."""

    def make(size=(16, 16), channels=3, classes=4, **preprocessing):
        preprocessing = {"mean": [0.5] * channels, "std": [0.25] * channels} | preprocessing
        return SimpleNamespace(
            input_shape=(None, *size, channels),
            output_shape=(None, classes),
            preprocessing=preprocessing,
        )

    return make


@pytest.fixture
def picture():
    """A photo-like image: smooth shading, edges and some noise."""

    def make(height, width, channels=3, seed=0):
        random = np.random.default_rng(seed)
        y, x = np.mgrid[0:height, 0:width] / max(height, width)
        planes = []
        for _ in range(channels):
            a, b, c = random.uniform(2, 20, 3)
            plane = 110 + 60 * np.sin(a * x + b * y) + 40 * ((x - 0.4) ** 2 + y**2 < c / 60)
            planes.append(plane + random.normal(0, 12, plane.shape))
        return np.clip(np.stack(planes, axis=-1), 0, 255).astype("uint8")

    return make


@pytest.fixture
def pictures(picture):
    """Images (n, 20, 24, 3) and their classes, 0 to 3."""
    return lambda n: (np.stack([picture(20, 24, seed=i) for i in range(n)]), np.arange(n) % 4)


@pytest.fixture
def save():
    def save(path, pixels, **options):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        Image.fromarray(pixels).save(path, **options)
        return path

    return save


@pytest.fixture
def pets(tmp_path, picture, save):
    """A directory of two classes with ten readable images each, of several kinds."""
    directory = tmp_path / "pets"
    for label, name in enumerate(("cat", "dog")):
        for i in range(7):
            save(directory / name / f"{i}.jpg", picture(40 + i, 50, seed=10 * label + i))
        save(directory / name / "gray.png", picture(33, 30, 1))
        save(directory / name / "alpha.png", picture(30, 33, 4))
        save(directory / name / "deep" / "upper.PNG", picture(20, 20))
        (directory / name / "notes.txt").write_text("no image, and not taken for one")
    return directory
