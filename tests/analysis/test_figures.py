"""Each figure is drawn, and shows what it should, for results that are told apart by eye."""

import keras
import numpy as np
import pytest
from harness import numbers, randomized
from PIL import Image

from keras_vitx import analysis
from keras_vitx.analysis.pictures import saliency

pytestmark = pytest.mark.backend_free

IMAGES = numbers((2, 16, 16, 3))


@pytest.fixture(scope="module")
def results():
    made = {name: randomized(name, 0.3, depth=3) for name in ("ViT", "DeepViT")}
    return {name: analysis.measure(model, IMAGES) for name, model in made.items()}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Return a function that draws to a file and returns the axes; the file must not be empty."""
    from matplotlib.figure import Figure

    kept, subplots = [], Figure.subplots

    def watched(*args, **kwargs):
        kept.append(subplots(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(Figure, "subplots", watched)

    def call(function, *args, **kwargs):
        path = tmp_path / "new" / "figure.png"
        assert function(*args, path=path, **kwargs) == path
        assert [file.name for file in path.parent.iterdir()] == ["figure.png"]
        with Image.open(path) as picture:
            assert np.asarray(picture.convert("L")).std() > 5
        return kept[-1]

    return call


def curves(axis):
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axis.lines}


def shown(axis):
    return np.asarray(axis.images[0].get_array())


def means(values):
    return [np.mean(value) for value in values.values()]


def test_measures_by_block(results, drawn):
    ((one, other),) = drawn(analysis.plot_by_block, results, ["steepness", "adjacent_similarity"])
    for model, measured in results.items():
        np.testing.assert_allclose(curves(one)[model], means(measured["steepness"]))
        np.testing.assert_allclose(curves(other)[model], means(measured["adjacent_similarity"]))
    # The first block has none before it.
    assert list(other.lines[0].get_xdata()) == [1, 2]
    ((axis,),) = drawn(analysis.plot_by_block, results, "entropy")
    np.testing.assert_allclose(curves(axis)["log T"], np.log([5, 5, 5]), rtol=1e-6)


def test_class_blocks_are_not_joined_to_the_others(drawn):
    model = randomized("CaiT", class_depth=2)
    measured = analysis.measure(model, IMAGES, ["entropy"])
    ((axis,),) = drawn(analysis.plot_by_block, {"CaiT": measured}, "entropy")
    blocks, class_blocks = (list(line.get_xdata()) for line in axis.lines)
    assert (blocks, class_blocks) == ([0, 1, 2], [3, 4])
    assert axis.lines[1].get_label() == "CaiT, class attention"


def test_curves(drawn):
    points = {"a": {0.1: 0.4, 1: 0.8}, "b": {1: 0.88, 0.1: 0.5, 0.5: 0.7}}
    ((axis,),) = drawn(analysis.plot_curves, points, xlabel="fraction")
    assert curves(axis)["b"].tolist() == [0.5, 0.7, 0.88]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("fraction", "accuracy")
    rows = [{"strength": 2, "accuracy": 0.5, "interval": 0.1}, {"strength": 0, "accuracy": 0.8}]
    rows[1]["interval"] = None
    points = {"a": rows, "b": rows[:1]}
    ((axis,),) = drawn(analysis.plot_curves, points, xlabel="epsilon")
    assert curves(axis)["a"].tolist() == [0.8, 0.5]
    (bars,) = axis.containers[0][2]
    np.testing.assert_allclose(bars.get_segments()[0], [[2, 0.4], [2, 0.6]])


def test_a_history(drawn, tmp_path):
    history, file = keras.callbacks.History(), tmp_path / "history.csv"
    history.history = {"loss": [2.0, 1.0], "val_loss": [2.5, 1.5], "rate": [0.1, 0.2]}
    file.write_text("epoch,loss,val_loss,rate,val_rate\n0,2.0,2.5,0.1,NA\n1,1.0,1.5,0.2,NA\n")
    for given in (history, file):
        ((loss, rate),) = drawn(analysis.plot_history, given)
        assert {name: line.tolist() for name, line in curves(loss).items()} == {
            "training": [2, 1], "validation": [2.5, 1.5]
        }  # fmt: skip
        assert curves(rate)["training"].tolist() == [0.1, 0.2] and len(rate.lines) == 1


def test_matrices(results, drawn):
    ((vit, deep),) = drawn(analysis.plot_matrix, results, "cross_layer_similarity")
    shares = np.stack(list(results["DeepViT"]["cross_layer_similarity"].values()))
    np.testing.assert_allclose(shown(deep), shares)
    assert [x.get_text() for x in vit.get_yticklabels()] == ["block 0", "block 1", "block 2"]
    ((axis,),) = drawn(analysis.plot_matrix, {"DeepViT": results["DeepViT"]}, "re_attention")
    np.testing.assert_allclose(shown(axis), results["DeepViT"]["re_attention"]["blocks_2"])
    assert axis.get_title() == "DeepViT, block 2"
    assert axis.images[0].get_clim() == pytest.approx(
        [-np.abs(shown(axis)).max(), np.abs(shown(axis)).max()]
    )
    ((axis, _),) = drawn(analysis.plot_matrix, results, "entropy")
    np.testing.assert_allclose(shown(axis), list(results["ViT"]["entropy"].values()))
    pit = analysis.measure(randomized("PiT"), IMAGES, ["class_attention"])
    rows = {"ViT": results["ViT"], "PiT": pit}
    ((vit, pit),) = drawn(analysis.plot_matrix, rows, "class_attention")
    expected = [values.mean(0) for values in results["ViT"]["class_attention"].values()]
    np.testing.assert_allclose(shown(vit), expected)
    assert shown(pit).shape == (3, 10)


def test_training(drawn):
    rows = [
        {"epoch": n, "step": n, "measure": "gates", "block": block, "head": head, "value": value}
        for n in (0, 1)
        for block in ("blocks_0", "blocks_1")
        for head, value in enumerate((0.25, 0.75 + 0.25 * n))
    ]
    axes = drawn(analysis.plot_dynamics, rows, measures="gates", heads=True)
    assert axes.shape == (1, 2)
    *heads, mean = axes[0, 0].lines
    assert len(heads) == 2 and mean.get_color() == "black"
    np.testing.assert_allclose(mean.get_ydata(), [0.5, 0.625])
    ((axis,),) = drawn(analysis.plot_dynamics, rows)
    np.testing.assert_allclose(curves(axis)["block 1"], [0.5, 0.625])


def test_class_token(drawn):
    model = randomized("CaiT", class_depth=2)
    model.class_names = names = ["ant", "bee", "cat", "dog", "eel"]
    axes = drawn(analysis.plot_class_attention, model, IMAGES, titles=["a", "b"])
    assert axes.shape == (2, 1 + 2)
    maps = analysis.class_attention(model, IMAGES)
    salient = saliency(maps["blocks_token_only_1"], (16, 16))
    np.testing.assert_allclose(shown(axes[1, 2]), salient[1])
    assert (salient.min((1, 2)) == 0).all() and (salient.max((1, 2)) == 1).all()
    assert not saliency(np.full((1, 2, 4, 6), 0.25, "float32"), (32, 48)).any()
    assert axes[1, 0].get_title() == "b"

    axes = drawn(analysis.plot_class_attention, model, IMAGES, mode="heads")
    assert axes.shape == (2 * 2, 1 + 2)
    np.testing.assert_allclose(shown(axes[3, 2]), maps["blocks_token_only_1"][1, 1])
    assert axes[2, 0].images and not axes[3, 0].images

    axes = drawn(analysis.plot_class_attention, model, IMAGES, mode="focus")
    assert axes.shape == (2, 2) and shown(axes[1, 1]).shape == (16, 16)
    predicted = np.asarray(model.predict(IMAGES, verbose=0))[1]
    said = axes[1, 1].get_title().replace("\n", " ")
    assert said.startswith(f"{names[predicted.argmax()]} ({100 * predicted.max():.0f}%)")
    assert said.count("%") == (predicted > 0.1).sum()


def test_attributions(drawn):
    model = randomized("CaiT")
    axes = drawn(analysis.plot_attribution, model, IMAGES, methods=["rollout", "gradient"])
    assert [axis.get_title() for axis in axes[0, 1:]] == ["rollout", "gradient"]
    assert not any(axis.get_title() for axis in axes[1, 1:]), "not repeated"
    found = saliency(analysis.attribute(model, IMAGES, "rollout")[:, None], (16, 16))
    for row, picture in zip(axes, found, strict=True):
        gray, over = row[1].images
        np.testing.assert_allclose(over.get_array(), picture, atol=1e-6)
        assert np.ptp(gray.get_array()) > 0.1


# QUVA-Lab/artemis#39
@pytest.mark.parametrize(
    ("suffix", "kind", "start"),
    [
        ("png", "image/png", b"\x89PNG"),
        ("svg", "image/svg+xml", "<?xml"),
        ("pdf", "text/plain", ""),
    ],
)
def test_a_figure_is_a_path_that_opens_and_a_picture(suffix, kind, start, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = analysis.plot_curves({"a": {1: 0.5, 2: 0.6}}, f"~/a.{suffix}", xlabel="epoch")
    assert path == tmp_path / f"a.{suffix}" and path.exists()
    ((found, content),) = path._repr_mimebundle_().items()
    assert found == kind and content.startswith(start)


def test_attention_of_one_patch(drawn):
    models = {"ConViT": randomized("ConViT"), "CaiT": randomized("CaiT")}
    axes = drawn(analysis.plot_query, models, IMAGES[:1], query=(0, 1))
    # Class blocks are left out; four heads at most.
    assert axes.shape == (3 + 3, 1 + 4)
    first = next(analysis.trace(models["ConViT"], IMAGES[:1]))
    np.testing.assert_allclose(shown(axes[0, 2]).ravel(), first.softmax[0, 1, 1], 1e-3, 1e-4)
    assert axes[0, 2].get_title() == f"head 1, gate {first.gates[1]:.2f}"
    assert axes[0, 2].patches[0].get_xy() == (0.5, -0.5)
    assert axes[0, 0].patches[0].get_xy() == (7.5, -0.5), "on the image, of 16 x 16 pixels"


def test_whole_maps(drawn):
    refined = randomized("RefinedViT", 0.3)
    axes = drawn(analysis.plot_maps, {"a": refined, "b": randomized("ViT")}, IMAGES)
    assert axes.shape == (2, 3)
    one = next(analysis.trace(refined, IMAGES)).maps.mean((0, 1))
    np.testing.assert_allclose(shown(axes[0, 0]), one / one.max(), rtol=1e-5)
    axes = drawn(analysis.plot_maps, {"a": refined}, IMAGES, blocks=["blocks_1"], before=True)
    assert axes.shape == (2, 1)
    before, after = (shown(axis) for axis in axes[:, 0])
    assert np.abs(before - after).max() > 1e-3
    labels = [axis.get_ylabel() for axis in axes[:, 0]]
    assert labels == ["a, before\nqueries", "a, after\nqueries"]
    assert [axis.get_title() for axis in axes[:, 0]] == ["block 1", ""]
    # ViT modifies nothing: one row. Signed maps have colors about 0.
    axes = drawn(analysis.plot_maps, {"b": randomized("ViT"), "a": refined}, IMAGES, before=True)
    assert axes.shape == (3, 3)
    assert [row[0].images[0].get_clim() for row in axes] == [(0, 1), (0, 1), (-1, 1)]
    axes = drawn(analysis.plot_maps, {"a": refined}, IMAGES, by_entropy=3)
    titles = [axis.get_title().split("entropy ") for axis in axes[0]]
    stated = [float(nats) for _, nats in titles]
    assert len(titles) == 3 and stated == sorted(stated) and "head" in titles[0][0]
    maps = [shown(axis) for axis in axes[0]]
    found = [analysis.measures.entropy(x / x.sum(-1, keepdims=True)).mean() for x in maps]
    assert found == pytest.approx(stated, abs=0.006)


def test_classes(drawn):
    pytest.importorskip("sklearn")
    probabilities = np.float32([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.4, 0.6, 0], [0.3, 0.7, 0]])
    results = {"labels": np.array([0, 0, 0, 1]), "probabilities": probabilities}
    results["class_names"] = ("ant", "bee", "cat")
    ant, bee = analysis.classes_of(results)
    assert ant == {
        "class": "ant", "images": 3, "accuracy": 1 / 3, "taken for": "bee", "worst": 1
    }  # fmt: skip
    assert (bee["accuracy"], bee["taken for"], bee["worst"]) == (1, None, 3)
    ((axis,),) = drawn(analysis.plot_confusion, results)
    assert shown(axis)[:2].tolist() == [[pytest.approx(1 / 3), pytest.approx(2 / 3), 0], [0, 1, 0]]
