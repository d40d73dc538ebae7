from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import picture, save_picture


@pytest.fixture(scope="session")
def photographs():
    """Paths of photographs of several sizes, from scikit-image's wheel."""
    if (found := find_spec("skimage")) is None:
        pytest.skip("scikit-image, whose photographs are used, is not installed")
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
    return [Path(found.origin).parent / "data" / name for name in names]


@pytest.fixture
def pets(tmp_path):
    """A directory of two classes with ten readable images each, of several kinds."""
    directory = tmp_path / "pets"
    for label, name in enumerate(("cat", "dog")):
        for i in range(7):
            save_picture(directory / name / f"{i}.jpg", picture(40 + i, 50, seed=10 * label + i))
        save_picture(directory / name / "gray.png", picture(33, 30, 1))
        save_picture(directory / name / "alpha.png", picture(30, 33, 4))
        save_picture(directory / name / "deep" / "upper.PNG", picture(20, 20))
        (directory / name / "notes.txt").write_text("no image, and not taken for one")
    return directory
