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
    code, _, err = run("explore", tiny_file, picture, "-o", "page.html")
    assert code == 2 and "page.html" in err and page.read_text("utf-8") == whole
    chosen = ("--blocks", "blocks_token_only_0", "--heads", "mean", "--overwrite")
    code, _, err = run("explore", tiny_file, picture, "-o", "page.html", *chosen)
    assert code == 0, err
    assert 'data-maps="0/0/' not in page.read_text("utf-8")


@pytest.mark.parametrize(
    "words, message",
    (
        (("--heads", "max"), "`heads` must be numbers of heads or 'mean'. Received: ['max']."),
        (("--heads", "9"), "`heads`: block 'blocks_0' has heads 0 to 3. Received: 9."),
        (("--blocks", "0,9"), "`blocks`: the model"),
        (("--limit", "0.001"), "more than the limit of 0.001 MB"),
        (("gone.png",), "gone.png"),
    ),
)
def test_one_clear_error(run, tiny_file, picture, tmp_path, words, message):
    code, out, err = run("explore", tiny_file, picture, *words, "-o", "page.html")
    assert code == 2 and not out
    assert err.startswith("Error: ") and err.count("\n") == 1 and message in err
    assert not (tmp_path / "page.html").exists()
