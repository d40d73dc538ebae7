"""Analysis: traces, measures, figures, the page, and measures during training."""

import sys
from functools import partial

import keras
import numpy as np
from harness import FAMILIES, numbers, of_each

import keras_vitx as kv
from keras_vitx import analysis
from keras_vitx.analysis import MeasureDuringTraining, class_attention, explore, measure, trace
from keras_vitx.analysis import measures as m

BACKEND_FREE = True
IMAGES, TOKENS = numbers((2, 16, 16, 3)), numbers((4, 5, 7))
MAPS = np.full((2, 3, 6, 6), 1 / 6, "float32")
ROWS = [{"epoch": 0, "step": 0, "measure": "gates", "block": "blocks_0", "head": 0, "value": 0.5}]
CaiT, Mixer, ViT = (FAMILIES[name] for name in ("CaiT", "Mixer", "ViT"))


def cut():
    model = ViT()
    return keras.Model(model.input, model.layers[0].output, name="cut")


def pooled():
    return CaiT(class_depth=0, pooling="avg")


def traced(images):
    trace(ViT(), images)


def page(given, tmp_path):
    """The page of two pictures, which is not written."""
    options, path = {"model": ViT, **given}, tmp_path / "page.html"
    model, pictures = options.pop("model")(name="mine"), np.zeros((2, 24, 20, 3), "uint8")
    try:
        explore(model, pictures, path, **options)
    finally:
        assert not path.exists()


def during(given):
    callback = MeasureDuringTraining(**{"images": IMAGES, **given})
    (model := ViT()).compile("sgd", "sparse_categorical_crossentropy")
    model.fit(IMAGES, np.zeros(2), callbacks=[callback], verbose=0)


def of_another_table(tmp_path):
    (tmp_path / "m.csv").write_text("a,b\n")
    return analysis.read_dynamics(tmp_path / "m.csv")


def without_tensorboard(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    MeasureDuringTraining(IMAGES, log_dir="logs")


DURING = {
    "no measure 'entropi'...'entropy'": {"measures": ["entropi"]},
    "'mean_maps' has more than one number": {"measures": ["mean_maps"]},
    "'gates' needs gates": {"measures": ["gates"]},
    "`every` must be an integer in [1, inf), or None. Received: 0": {"every": 0},
}
PAGE = {
    "`blocks`: the model 'mine' has blocks 0 to 1. Received: 7": {"blocks": [7]},
    "`blocks`...mean 'blocks_1'": {"blocks": ["block_1"]},
    "at least one block": {"blocks": []},
    "`heads`: block 'blocks_0' has heads 0 to 1. Received: 4": {"heads": [4]},
    "`heads` must be numbers of heads or 'mean'. Received: 'max'": {"heads": "max"},
    "`names` must be 2": {"names": ["a"]},
    "'mine' has no attention maps": {"model": Mixer},
}
TRACED = {
    "16, 16, 3)...Received: (2, 8, 16, 3)...preprocess_input": IMAGES[:, :8],
    "16, 16, 3)...Received: (16, 16, 3)...preprocess_input": IMAGES[0],
    "16, 16, 3)...Received: (0, 16, 16, 3)...preprocess_input": IMAGES[:0],
}
RESULTS = {"a": {"entropy": {"blocks_0": np.ones(2)}, "mean_maps": {"blocks_0": MAPS[0]}}}
plot_curves = partial(analysis.plot_curves, path="a.png", xlabel="")
plot_maps = partial(analysis.plot_maps, images=IMAGES, path="a.png")
ERRORS = {
    ImportError: {"`log_dir` needs tensorboard": without_tensorboard},
    ValueError: {
        **of_each(traced, TRACED),
        **of_each(during, DURING),
        **of_each(page, PAGE),
        # Traces.
        "no block 'block_1'...mean 'blocks_1'": lambda: trace(ViT(), IMAGES, ["block_1"]),
        "'cut' has no blocks": lambda: trace(kv.as_chain(cut()), IMAGES),
        "has no attention maps": lambda: class_attention(Mixer(), IMAGES),
        "no class token": lambda: class_attention(pooled(), IMAGES),
        # Measures.
        "Did you mean 'entropy'": lambda: measure(ViT(), IMAGES, "entropi"),
        "needs gates (ConViT...model 'mine'": lambda: measure(ViT(name="mine"), IMAGES, "gates"),
        "needs a class token": lambda: measure(pooled(), IMAGES, "class_attention"),
        "one of 'softmax', 'values', or None. Received: 'both'": lambda: measure(
            ViT(), IMAGES, maps="both"
        ),
        "`batch_size` must be an integer in [1, inf)": lambda: measure(ViT(), IMAGES, batch_size=0),
        "at least two images": lambda: measure(ViT(), IMAGES[:1], "normalized_cka"),
        "change their width": lambda: analysis.embedding_maps(FAMILIES["PiT"](), IMAGES),
        "one query and one key per patch...(8, 8)...class token": lambda: m.nonlocality(
            np.ones((8, 8)), (2, 3)
        ),
        "same shape...(2, 3, 6, 6) and (2, 2, 6, 6)": lambda: m.map_cosines(MAPS, MAPS[:, :2]),
        "'queries' or 'heads'...'keys'": lambda: m.map_cosines(MAPS, MAPS, over="keys"),
        "same shape...(4, 4, 7)": lambda: m.feature_similarity(TOKENS, TOKENS[:, 1:]),
        "same images, at least two": lambda: m.linear_cka(TOKENS[0, :1], TOKENS[1, :1]),
        "same shape": lambda: m.branch_ratio(TOKENS[:, 1:], TOKENS),
        "`over` must be 'token' or 'image'": lambda: m.branch_ratio(TOKENS, TOKENS, over="batch"),
        "(..., queries, keys). Received: shape (3,)": lambda: m.entropy([0.2, 0.3, 0.5]),
        # Training.
        "must have the columns epoch, step...Received: a, b": of_another_table,
        "`values` must have at least one epoch": lambda: analysis.converged_at([]),
        "at least one row": lambda: analysis.results_by_epoch([]),
        # Figures.
        "no measure 'entropie'. Did you mean 'entropy'": lambda: analysis.plot_by_block(
            RESULTS, "entropie", "a.png"
        ),
        "`name` must be a measure with a row of numbers": lambda: analysis.plot_matrix(
            RESULTS, "mean_maps", "a.png"
        ),
        "`baseline` must be one of ... Received: 'c'": lambda: plot_curves(
            {"a": {1: 2}}, baseline="c"
        ),
        "`curves` must have points for each label. Received: ['a']": lambda: plot_curves({"a": []}),
        "no measure 'entropy'. Known: gates": lambda: analysis.plot_dynamics(
            ROWS, "a.png", measures=["entropy"]
        ),
        "`mode` must be ... Received: 'all'": lambda: analysis.plot_class_attention(
            CaiT(), IMAGES, "a.png", mode="all"
        ),
        "`query` must be ... grid (2, 2)": lambda: analysis.plot_query(
            {"a": CaiT()}, IMAGES, "a.png", query=(2, 0)
        ),
        "No block of the models": lambda: analysis.plot_query({"a": Mixer()}, IMAGES, "a.png"),
        "no attention maps": lambda: plot_maps({"a": Mixer()}),
    },
}
