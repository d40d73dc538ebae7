import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, randomized

import keras_vitx as kv
from keras_vitx.analysis import MEASURES, Measure, embedding_maps, measure, measures, trace
from keras_vitx.layers import ContextBroadcasting

IMAGES = numbers((5, 16, 16, 3))


OWN = {"gates", "attention_center", "re_attention", "context_scale"}
OF_FAMILY = {"ConViT": {"gates", "attention_center"}, "DeepViT": {"re_attention"}}
ON_TOKENS = {"attention_branch", "mlp_branch", "feature_similarity", "normalized_cka"}
ON_TOKENS |= {"outlier_tokens"}
MAY_BE_NAN = {"cross_layer_similarity", "attention_center"}


@pytest.mark.parametrize("family", FAMILIES if BACKEND == "torch" else ["ConViT"])
def test_all_measures_of_a_family(family):
    # Two blocks of one kind for the similarity of maps.
    changes = {"PiT": {"depths": (2, 2)}}.get(family, {})
    model = randomized(family, **changes)
    found = measure(model, IMAGES, batch_size=2)
    own = OF_FAMILY.get(family, set())
    assert set(found) == (ON_TOKENS if family == "Mixer" else MEASURES.keys() - OWN | own)
    for name, values in found.items():
        for value in values.values():
            assert value.dtype == np.float32
            assert np.isfinite(value).all() or name in MAY_BE_NAN, name


@pytest.mark.backend_free
def test_means_over_all_images():
    model = randomized("ConViT")
    one = next(trace(model, IMAGES))
    maps = {"entropy": measures.entropy(one.softmax).mean(2)}
    maps["nonlocality"] = measures.nonlocality(one.softmax, (2, 2))
    maps["relative_distance"] = measures.relative_distance(one.softmax, (2, 2))
    maps["mean_maps"] = one.maps
    maps["mlp_branch"] = measures.branch_ratio(one.mlp_branch, one.mlp_input)
    values = one.values.transpose(0, 2, 1, 3)
    maps["sink_share"] = measures.sink_share(one.maps)
    maps["sink_norm"] = measures.sink_norm(one.maps, one.inputs[:, None])
    maps["sink_value_norm"] = measures.sink_norm(one.maps, values)
    maps["effective_rank"] = measures.effective_rank(one.maps @ values)
    maps["outlier_tokens"] = measures.outlier_tokens(one.outputs)
    for size in (2, 100):
        found = measure(model, IMAGES, list(maps), batch_size=size)
        assert list(found) == list(maps)
        for name, expected in maps.items():
            close(found[name]["blocks_0"], expected.mean(0), message=name)


@pytest.mark.backend_free
def test_measures_between_blocks():
    model = randomized("DeepViT", depth=3)
    traced = list(trace(model, IMAGES))
    names = ["cross_layer_similarity", "adjacent_similarity", "map_similarity"]
    names += ["feature_similarity", "normalized_cka"]
    found = measure(model, IMAGES, names, batch_size=2)
    expected = measures.cross_layer_similarity([one.maps for one in traced]).mean(0)
    close(np.stack(list(found["cross_layer_similarity"].values())), expected)
    assert list(found["adjacent_similarity"]) == ["blocks_1", "blocks_2"]
    close(found["adjacent_similarity"]["blocks_2"], expected[1, 2])
    cosines = measures.map_similarity(traced[0].maps, traced[1].maps)
    close(found["map_similarity"]["blocks_1"], cosines.mean())
    cosines = measures.feature_similarity(traced[1].outputs, traced[2].outputs)
    close(found["feature_similarity"]["blocks_1"], cosines.mean())
    assert found["feature_similarity"]["blocks_2"] == pytest.approx(1)
    # Whole batches only: the fifth image is left out.
    halves = [
        measures.normalized_cka([one.outputs[part] for one in traced])
        for part in (slice(0, 2), slice(2, 4))
    ]
    close(np.stack(list(found["normalized_cka"].values())), np.mean(halves, 0))


@pytest.mark.backend_free
def test_measures_say_whether_they_need_probabilities():
    model = randomized("DeepViT")
    for name, each in MEASURES.items():
        if each.probabilities:
            with pytest.raises(ValueError, match="must be probabilities"):
                measure(model, IMAGES, [name], maps="values")
        elif name not in OWN:
            measure(model, IMAGES, [name], maps="values")
    found = measure(model, IMAGES, maps="values")
    assert not {name for name in found if MEASURES[name].probabilities}


@pytest.mark.backend_free
def test_which_maps():
    model = randomized("DeepViT")
    one = next(trace(model, IMAGES))
    by_default = measure(model, IMAGES, ["mean_maps"])["mean_maps"]["blocks_0"]
    before = measure(model, IMAGES, ["mean_maps"], maps="softmax")["mean_maps"]["blocks_0"]
    close(by_default, one.maps.mean(0))
    close(before, one.softmax.mean(0))
    shared = measure(randomized("RefinedViT"), IMAGES, ["entropy"])["entropy"]
    assert list(shared) == ["blocks_0", "blocks_2"]


@pytest.mark.backend_free
def test_weights():
    model = randomized("ConViT")
    attention = model.get_layer("blocks_1").attention
    attention.gating_param.assign([0.0, 0.0, 100.0, -100.0])
    attention.pos_proj.kernel.assign(np.array([[2.0], [-4.0], [-1.0]]) * np.ones((1, 4)))
    found = measure(model, IMAGES, ["gates", "attention_center"])
    close(found["gates"]["blocks_1"], (0.5, 0.5, 1, 0))
    close(found["attention_center"]["blocks_1"][3], (1, -2, 5**0.5))
    model = randomized("DeepViT")
    theta = model.get_layer("blocks_1").attention.on_weights[0].reatten_matrix.kernel
    close(measure(model, IMAGES, ["re_attention"])["re_attention"]["blocks_1"], array(theta))
    model = FAMILIES["CBViT"](scaled=True)
    context = model.get_layer("blocks_0").mlp.on_output[0]
    assert isinstance(context, ContextBroadcasting)
    context.scaling.assign(np.linspace(1, 2, 8))
    found = measure(model, IMAGES, ["context_scale"])["context_scale"]["blocks_0"]
    close(found, (1.5, 1.1 / 1.9))


@pytest.mark.backend_free
def test_the_codes_way_of_nonlocality():
    model = randomized("ConViT")
    maps = dict(embedding_maps(model, IMAGES))
    # The first block's attention, without the norm and the positions before it.
    patches = model.layers[0](IMAGES)
    _, expected = model.get_layer("blocks_2").attention(patches, return_attention_scores=True)
    assert list(maps) == ["blocks_0", "blocks_1", "blocks_2"]
    close(maps["blocks_2"], array(expected))
    assert measures.nonlocality(maps["blocks_2"], (2, 2)).shape == (5, 4)
    assert list(dict(embedding_maps(FAMILIES["CaiT"](), IMAGES))) == list(maps)


@pytest.mark.backend_free
def test_class_tokens_and_a_measure_of_ones_own():
    model = randomized("ViT")
    own = {"largest": Measure(lambda block: block.maps.max((1, 2, 3)))}
    own |= {name: MEASURES[name] for name in ("class_attention", "nonlocality")}
    found = measure(model, IMAGES, own)
    for one in trace(model, IMAGES):
        close(found["largest"][one.name], one.maps.max((1, 2, 3)).mean())
        close(found["class_attention"][one.name], one.maps[:, :, 0].mean(0))
        # Distances are those between patches.
        expected = measures.nonlocality(one.softmax[..., 1:, 1:], (2, 2)).mean(0)
        close(found["nonlocality"][one.name], expected)


@pytest.mark.backend_free
def test_the_same_network_at_its_start():
    model = randomized("CaiT")
    start = kv.analysis.at_start(model)
    assert [v.shape for v in start.weights] == [v.shape for v in model.weights]
    scale = start.get_layer("blocks_0").ls1.gamma
    np.testing.assert_allclose(array(scale), start.get_layer("blocks_0").layer_scale)
