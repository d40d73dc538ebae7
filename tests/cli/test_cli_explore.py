import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.backend_free


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(np.full((20, 30, 3), 220, "uint8")).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_explore(run, tiny_file, picture, tmp_path):
    code, out, err = run("explore", tiny_file, picture, "-o", "page.html")
    page = tmp_path / "page.html"
    assert code == 0, err
    assert out == f"Wrote page.html, {page.stat().st_size / 1e6:.1f} MB.\n"
    whole = page.read_text("utf-8")
    assert "a.png" in whole and 'data-maps="0/0/before"' in whole
    chosen = ("--blocks", "blocks_token_only_0", "--heads", "mean", "--overwrite")
    code, _, err = run("explore", tiny_file, picture, "-o", "page.html", *chosen)
    assert code == 0, err
    assert 'data-maps="0/0/' not in page.read_text("utf-8")
