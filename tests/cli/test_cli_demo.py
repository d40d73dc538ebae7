"""`keras-vitx demo`, and the accuracies that the README gives for it."""

import re

import pytest
from harness import BACKEND, ROOT

pytestmark = pytest.mark.backend_free


@pytest.mark.skipif(BACKEND != "torch", reason="the README has PyTorch's figures")
def test_the_readme_has_the_accuracies_of_a_run(run, tmp_path):
    line = re.search(r"^make demo .*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    stated = [float(value) for value in re.findall(r"([\d.]+) %", line)]
    code, out, err = run("demo", "--output", "demo")
    assert code == 0, err
    shown = re.findall(r"(?:checkpoint|weights)\s*│\s*[\d.]+%\s*│\s*([\d.]+)%", out)
    # Another processor, or number of threads, sums in another order.
    assert stated == pytest.approx([float(value) for value in shown], abs=2)
    for name in ("finetuned/best.keras", "class_attention.png", "saved_model/saved_model.pb"):
        assert (tmp_path / "demo" / name).is_file()
