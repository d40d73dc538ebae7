import json

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.backend_free


def test_check_lists_what_can_not_be_decoded(run, tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for name in "abc":
        Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(f"photos/cat/{name}.png")
    code, out, err = run("check", "photos")
    assert (code, out) == (0, "3 images, 0 can't be decoded.\n"), err
    (tmp_path / "photos" / "cat" / "b.png").write_bytes(b"damaged")
    (tmp_path / "photos" / "cat" / "raw.cr2").write_bytes(b"of a camera")
    code, out, err = run("check", "photos", "--json")
    found = json.loads(out)
    assert code == 1 and found["images"] == 4
    assert sorted(found["errors"]) == ["photos/cat/b.png", "photos/cat/raw.cr2"]
    assert "can't be decoded" in found["errors"]["photos/cat/b.png"]
