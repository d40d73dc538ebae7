"""The page in Chromium, where it is installed."""

import json
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest
from harness import randomized

import keras_vitx as kv
from keras_vitx.analysis import explore, trace

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PICTURES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")

# Errors of the page; then a visit to every control, and the weights that it shows.
LISTENER = """<script>
window.errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
</script>"""
VISIT = """<script>
(async () => {
  const pause = () => new Promise((done) => setTimeout(done, 50));
  while (document.documentElement.dataset.ready !== "true") await pause();
  const found = {};
  const press = (key, target = document.body) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const readout = async () => { await pause(); drawNow(); return element("readout").textContent; };
  const canvas = document.querySelector("#panes canvas");
  const box = canvas.getBoundingClientRect();
  const at = (x, y) =>
    ({ clientX: box.x + x * box.width, clientY: box.y + y * box.height, bubbles: true });
  canvas.dispatchEvent(new MouseEvent("click", at(0.9, 0.1)));
  found.clicked = await readout();
  found.before = [...weights(shown[0], "before", 1)];
  found.after = [...weights(shown[0], "after", 1)];
  press("ArrowDown", canvas);
  found.arrow = await readout();
  const touch = { ...at(0.1, 0.9), pointerType: "touch" };
  canvas.dispatchEvent(new PointerEvent("pointermove", touch));
  found.touched = await readout();
  press("b"); press("h");
  found.keys = await readout();
  press("c");
  found.token = await readout();
  found.row = [...weights(shown[3], "after", 0)];
  press("i");
  await pause();
  found.image = state.image;
  document.querySelectorAll("#sheet canvas")[0].click();
  found.tile = await readout();
  const paper = () => getComputedStyle(document.body).backgroundColor;
  const before = paper();
  element("theme").click();
  found.papers = [before, paper()];
  element("stage").children[2].click();
  found.stage = state.stage;
  await pause();
  found.errors = errors;
  document.body.append(make("pre", { id: "found", textContent: JSON.stringify(found) }));
})();
</script>"""


@pytest.mark.backend_free
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_mouse_and_keys(tmp_path):
    model = randomized("CaiT")
    path = explore(model, PICTURES, tmp_path / "page.html")
    page = path.read_text("utf-8").replace("<title>", LISTENER + "<title>")
    path.write_text(page.replace("</body>", VISIT + "</body>"), "utf-8")
    dumped = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"),
            *("--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    found = json.loads(unescape(re.search(r'<pre id="found">(.*)</pre>', dumped)[1]))
    assert found["errors"] == []
    assert (
        found["clicked"] == "Block 0 (blocks_0), mean; the query is the patch in row 1, column 2."
    )
    assert found["arrow"].endswith("row 2, column 2.")
    assert found["touched"].endswith("row 2, column 1.")
    assert len(set(found["papers"])) == 2
    assert found["keys"].startswith("Block 1 (blocks_1), head 0;")
    assert found["token"].startswith(
        "Block 3 (blocks_token_only_0), head 0; the query is the class"
    )
    assert found["image"] == 1 and found["stage"] == "change"
    assert found["tile"].startswith("Block 0 (blocks_0), mean; the query is the patch")
    images = kv.preprocess_input(PICTURES[:1], model)
    first, _, _, last, *_ = trace(model, images)
    for name, expected in (
        ("before", first.softmax[0, 1, 1]),
        ("after", first.maps[0, 1, 1]),
        ("row", last.maps[0, 0, 0]),
    ):
        assert np.abs(found[name] - expected).max() <= np.ptp(expected) / 510 + 1e-5
