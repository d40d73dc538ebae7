"""Each figure is drawn, and shows what it should, for results that are told apart by eye."""

import numpy as np
import pytest
from harness import FAMILIES, numbers, randomize

import keras_vitx as kv
from keras_vitx import analysis
from keras_vitx.analysis import figures

pytestmark = pytest.mark.backend_free

IMAGES = numbers((2, 16, 16, 3))


def randomized(family, **changes):
    model = FAMILIES[family](**changes)
    for step in model.steps[1:]:
        randomize(step, 0.3)
    return model


@pytest.fixture(scope="module")
def results():
    made = {"ViT": randomized("ViT", depth=3), "DeepViT": randomized("DeepViT", depth=3)}
    return {name: analysis.measure(model, IMAGES) for name, model in made.items()}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Return a function that draws to a file and returns the axes; the file must not be empty."""
    kept, draw = [], figures.drawing

    def watched(*args, **kwargs):
        drawing = draw(*args, **kwargs)

        class Watched:
            def __enter__(self):
                kept.append(drawing.__enter__())
                return kept[-1]

            def __exit__(self, *error):
                return drawing.__exit__(*error)

        return Watched()

    for module in (figures, analysis.dynamics, analysis.pictures):
        monkeypatch.setattr(module, "drawing", watched)

    def call(function, *args, **kwargs):
        from PIL import Image

        path = tmp_path / "figure.png"
        # The path comes after what is drawn and, in `plot_by_block`, the name of the measure.
        assert function(*args, path=path, **kwargs) == path
        with Image.open(path) as picture:
            assert np.asarray(picture.convert("L")).std() > 5
        return kept[-1]

    return call


def curves(axis):
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axis.lines}


def test_curves_by_block(results, drawn):
    ((axis,),) = drawn(analysis.plot_by_block, results, "steepness")
    for model, one in results.items():
        expected = [values.mean() for values in one["steepness"].values()]
        np.testing.assert_allclose(curves(axis)[model], expected)
    ((axis,),) = drawn(analysis.plot_entropy, results)
    np.testing.assert_allclose(curves(axis)["log T"], np.log([5, 5, 5]), rtol=1e-6)
    with pytest.raises(ValueError, match=r"no measure 'entropie'. Did you mean 'entropy'"):
        drawn(analysis.plot_by_block, results, "entropie")


def test_similarities(results, drawn):
    axes = drawn(analysis.plot_layer_similarity, results)
    features, maps = curves(axes[0, 0]).values()
    assert features[-1] == pytest.approx(1) and np.isnan(maps[0]) and np.isfinite(maps[1:]).all()
    axes = drawn(analysis.plot_similarity_matrix, results)
    shown = axes[0, 1].images[0].get_array()
    rows = results["DeepViT"]["cross_layer_similarity"].values()
    np.testing.assert_allclose(shown, np.stack(list(rows)))
    ((axis,),) = drawn(analysis.plot_similar_blocks, results, threshold=-1)
    assert curves(axis)["ViT"] == pytest.approx(2 / 3)
    ((axis,),) = drawn(
        analysis.plot_similar_blocks, results, threshold=-1, widths={"ViT": 8, "DeepViT": 16}
    )
    assert curves(axis)["ViT"] == [2], "their number against the width"
    assert axis.lines[1].get_xdata() == [16] and axis.get_xlabel() == "embedding dimension"
    axes = drawn(analysis.plot_re_attention, {"DeepViT": results["DeepViT"]})
    theta = results["DeepViT"]["re_attention"]["blocks_2"]
    np.testing.assert_allclose(axes[0, 0].images[0].get_array(), theta)


def test_depth_of_re_attention(results, drawn):
    adjacent = results["ViT"]["adjacent_similarity"]
    ((axis,),) = drawn(analysis.plot_re_attention_depth, adjacent, {0: 0.5, 3: 0.6, 2: 0.7})
    np.testing.assert_allclose(curves(axis)["similarity"], list(adjacent.values()))
    assert list(axis.lines[0].get_xdata()) == [2, 3]
    (points,) = axis.figure.axes[1].lines
    assert list(points.get_xdata()) == [0, 1, 3] and list(points.get_ydata()) == [0.6, 0.7, 0.5]
    with pytest.raises(ValueError, match=r"depths from 0 to 3.*\[4\]"):
        analysis.plot_re_attention_depth(adjacent, {4: 0.5}, "figure.png")


def test_branches_of_a_training(results, drawn):
    """CaiT's Figure 4 over epochs, from the rows that the callback writes."""
    watch = analysis.MeasureDuringTraining(
        IMAGES, measures=["attention_branch", "mlp_branch", "entropy"]
    )
    model = FAMILIES["ViT"](depth=3)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(IMAGES, np.array([0, 1]), epochs=2, callbacks=[watch], verbose=0)
    epochs = analysis.results_by_epoch(watch.rows)
    now = analysis.measure(model, IMAGES, ["mlp_branch", "entropy"])
    assert len(epochs) == 3 and list(epochs[-1]["mlp_branch"]) == list(now["mlp_branch"])
    for name in now:
        for block, value in now[name].items():
            np.testing.assert_allclose(epochs[-1][name][block], value, rtol=1e-5)
    axes = drawn(analysis.plot_branches, {"ViT": epochs})
    shades = [line.get_alpha() for line in axes[1, 0].lines]
    assert shades == pytest.approx([0.2 + 0.8 * i / 3 for i in (1, 2, 3)])
    with pytest.raises(ValueError, match="at least one row"):
        analysis.results_by_epoch([])


def test_branches_by_epoch(results, drawn):
    axes = drawn(analysis.plot_branches, {"a": list(results.values()), "b": results["ViT"]})
    attention, mlp = axes[:, 0]
    assert [len(attention.lines), len(mlp.lines)] == [3, 3]
    shades = [line.get_alpha() for line in attention.lines]
    assert shades[0] < shades[1] == shades[2]
    np.testing.assert_allclose(
        curves(mlp)["b"], list(results["ViT"]["mlp_branch"].values()), rtol=1e-6
    )


def test_scales_of_context(drawn):
    scaled = analysis.measure(FAMILIES["CBViT"](scaled=True), IMAGES, ["context_scale"])
    axes = drawn(analysis.plot_context_scale, {"CB": scaled})
    for index, axis in enumerate(axes[0]):
        expected = [values[index] for values in scaled["context_scale"].values()]
        np.testing.assert_allclose(curves(axis)["CB"], expected)


def test_rows_of_the_class_token(results, drawn):
    pit = analysis.measure(randomized("PiT"), IMAGES, ["class_attention"])
    axes = drawn(analysis.plot_class_rows, {"ViT": results["ViT"], "PiT": pit})
    shown = np.asarray(axes[0, 0].images[0].get_array())
    rows = [values.mean(0) for values in results["ViT"]["class_attention"].values()]
    np.testing.assert_allclose(shown, rows)
    assert axes[1, 0].images[0].get_array().shape == (3, 10)


def test_accuracy_and_gap(drawn):
    points = {"a": {0.1: 0.4, 1: 0.8}, "b": {1: 0.88, 0.1: 0.5, 0.5: 0.7}}
    ((axis,),) = drawn(analysis.plot_accuracy, points, baseline="a")
    assert curves(axis)["b"].tolist() == [0.5, 0.7, 0.88]
    gaps = next(one for one in axis.figure.axes if one is not axis)
    np.testing.assert_allclose(gaps.lines[0].get_ydata(), [25, 10])
    with pytest.raises(ValueError, match=r"`baseline` must be one of the models. Received: 'c'"):
        drawn(analysis.plot_accuracy, points, baseline="c")


def test_accuracy_by_strength(drawn):
    rows = [
        {"strength": 2, "accuracy": 0.5, "interval": 0.1},
        {"strength": 0, "accuracy": 0.8, "interval": None},
    ]
    ((axis,),) = drawn(analysis.plot_strength, {"a": rows, "b": rows[:1]})
    line, _, (bars,) = axis.containers[0]
    assert line.get_ydata().tolist() == [0.8, 0.5]
    np.testing.assert_allclose(bars.get_segments()[1], [[2, 0.4], [2, 0.6]])
    with pytest.raises(ValueError, match="`curves` must have rows"):
        drawn(analysis.plot_strength, {"a": []})


def test_training(drawn):
    rows = [
        {
            "epoch": epoch,
            "step": epoch,
            "measure": "gates",
            "block": block,
            "head": head,
            "value": v,
        }
        for epoch in (0, 1)
        for block in ("blocks_0", "blocks_1")
        for head, v in enumerate((0.25, 0.75 + 0.25 * epoch))
    ]
    axes = drawn(analysis.plot_gates, rows)
    assert axes.shape == (1, 2)
    *heads, mean = axes[0, 0].lines
    assert len(heads) == 2 and mean.get_color() == "black"
    np.testing.assert_allclose(mean.get_ydata(), [0.5, 0.625])
    axes = drawn(analysis.plot_dynamics, rows)
    np.testing.assert_allclose(curves(axes[0, 0])["blocks_1"], [0.5, 0.625])
    with pytest.raises(ValueError, match=r"no measure 'entropy'. Known: gates"):
        drawn(analysis.plot_dynamics, rows, measures=["entropy"])
    with pytest.raises(ValueError, match="at least one row"):
        drawn(analysis.plot_dynamics, [])


def test_heads_of_the_class_token(drawn):
    axes = drawn(analysis.plot_class_heads, randomized("CaiT", class_depth=2), IMAGES)
    assert axes.shape == (2 * 2, 1 + 2)


def test_saliency(drawn):
    model = randomized("CaiT")
    names = ["ant", "bee", "cat", "dog", "eel"]
    axes = drawn(analysis.plot_saliency, model, IMAGES, class_names=names, least=0)
    predicted = np.asarray(model.predict(IMAGES, verbose=0))
    best = names[predicted[1].argmax()]
    assert axes[1, 1].get_title().startswith(f"{best} ({100 * predicted[1].max():.0f}%)")
    assert axes[1, 1].images[0].get_array().shape == (16, 16)


def test_attention_of_one_patch(drawn):
    models = {"ConViT": randomized("ConViT"), "CaiT": randomized("CaiT")}
    axes = drawn(analysis.plot_query, models, IMAGES[:1], query=(0, 1))
    # Class blocks are left out; four heads at most.
    assert axes.shape == (3 + 3, 1 + 4)
    first = next(analysis.trace(models["ConViT"], IMAGES[:1]))
    shown = np.asarray(axes[0, 2].images[0].get_array())
    np.testing.assert_allclose(shown.ravel(), first.softmax[0, 1, 1], rtol=1e-3, atol=1e-4)
    assert axes[0, 2].get_title() == f"{first.gates[1]:.2f}"
    assert axes[0, 2].patches[0].get_xy() == (0.5, -0.5)
    with pytest.raises(ValueError, match=r"on the grid \(2, 2\)"):
        drawn(analysis.plot_query, models, IMAGES, query=(2, 0))
    with pytest.raises(ValueError, match="No block of the models"):
        drawn(analysis.plot_query, {"Mixer": FAMILIES["Mixer"]()}, IMAGES)


def test_whole_maps(drawn):
    refined = randomized("RefinedViT")
    axes = drawn(analysis.plot_maps, {"a": refined, "b": randomized("ViT")}, IMAGES)
    assert axes.shape == (2, 3)
    one = next(analysis.trace(refined, IMAGES)).maps.mean((0, 1))
    np.testing.assert_allclose(axes[0, 0].images[0].get_array(), one / one.max(), rtol=1e-5)
    axes = drawn(analysis.plot_refined_maps, refined, IMAGES, blocks=["blocks_1"])
    assert axes.shape == (2, 1)
    before, after = (axis.images[0].get_array() for axis in axes[:, 0])
    assert np.abs(before - after).max() > 1e-3
    axes = drawn(analysis.plot_sorted_maps, refined, IMAGES, count=3)
    titles = [float(axis.get_title()) for axis in axes[0]]
    assert titles == sorted(titles)
    for function in (analysis.plot_refined_maps, analysis.plot_sorted_maps):
        with pytest.raises(ValueError, match="no attention maps"):
            drawn(function, FAMILIES["Mixer"](), IMAGES)


def test_without_matplotlib(monkeypatch, results, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match='extra "plots"'):
        kv.analysis.plot_entropy(results, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
