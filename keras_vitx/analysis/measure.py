"""Measures of a model, averaged over any number of images."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vitx.analysis import measures as m
from keras_vitx.analysis.trace import BlockTrace, as_array, trace
from keras_vitx.checks import check, check_argument
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import ContextBroadcasting, PositionalAttention, ReAttention

Sums = dict[str, dict[str, tuple[np.ndarray, int]]]
"""The sum over images and their number, by measure and block."""


@dataclass(frozen=True)
class Measure:
    """A measure of the blocks of a model.

    Attributes:
        of_block: A function from a `BlockTrace` to an array `(images, ...)`, or to None if it does
            not apply to the block. Without `compare`, its mean over images is the result.
        compare: For a measure of several blocks: a function from the results of `of_block`, by
            name of the block, to arrays `(images, ...)`, likewise. The arrays of all blocks are
            then in memory for one batch.
        needs: What a block must have, in words, for the error if no block does.
        per_batch: Whether `compare` returns `(1, ...)`, one result per batch. A smaller last batch
            is then skipped.
        probabilities: Whether it is only defined for rows of attention that sum to 1, such as
            those of a softmax; `of_block` raises `measures.NotProbabilities` for others.
    """

    of_block: Callable[[BlockTrace], np.ndarray | None]
    compare: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    needs: str = "attention maps"
    per_batch: bool = False
    probabilities: bool = False


def measure(
    model: keras.Model,
    images: ArrayLike,
    measures: Iterable[str] | Mapping[str, Measure] | None = None,
    batch_size: int = 32,
    maps: Literal["softmax", "values"] | None = None,
    threshold: float = 0.5,
    nearest: int | None = None,
    center: bool = False,
) -> dict[str, dict[str, np.ndarray]]:
    """Measure the blocks of a model, as means over images.

    The images run in batches, with sums in float64: memory depends on `batch_size`, most for the
    measures that compare blocks, but not on the number of images.

    Args:
        model: A model of this package, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model.
        measures: Names of `MEASURES`, or `Measure`s by name; None means all of `MEASURES` that
            apply to the model.
        batch_size: Images per batch. `normalized_cka` is computed per batch, on 32 images in
            the paper.
        maps: Which maps to measure: `"softmax"`, the outputs of the softmax, or `"values"`, those
            that multiplied the values. By default, the first for measures of density and of
            distance, which need probabilities, and the second for the others.
        threshold: tau of `cross_layer_similarity` and `adjacent_similarity`: the cosine above
            which attention is similar.
        nearest: If set, tau of `cross_layer_similarity` is the mean cosine within this many
            blocks, per batch; see `measures.cross_layer_similarity`.
        center: Whether the similarities of maps and of heads are those of `measures.centered` maps.

    Returns:
        For each measure, its value for each block to which it applies, by name.

    Raises:
        KeyError: if a measure is unknown.
        ValueError: if a measure applies to no block of the model, or one of probabilities gets maps
            that are not, by `maps="values"`.
    """
    check_argument("maps", maps, Literal["softmax", "values"] | None)
    if isinstance(measures, Mapping):
        selection = dict(measures)
    else:
        known = MEASURES | _similarities(threshold, nearest, center)
        names = [measures] if isinstance(measures, str) else known if measures is None else measures
        selection = {name: known[name] for name in names}
    if measures is None:
        selection = {name: where_defined(each) for name, each in selection.items()}
    sums: Sums = {name: {} for name in selection}
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        is_rest = start > 0 and len(batch) < batch_size
        of_batch = {k: v for k, v in selection.items() if not (is_rest and v.per_batch)}
        add_sums(sums, (_with_maps(block, maps) for block in trace(model, batch)), of_batch)
    results = means(sums)
    if measures is None:
        return {name: result for name, result in results.items() if result}
    for name, result in results.items():
        check(result, f"The measure {name!r} needs {selection[name].needs}.", model.name)
    return results


def where_defined(measure: Measure) -> Measure:
    """Return a measure that skips blocks whose maps are not probabilities, if it needs them."""

    def of_block(block):
        with suppress(m.NotProbabilities):
            return measure.of_block(block)

    return replace(measure, of_block=of_block) if measure.probabilities else measure


def at_start(model: keras.Model) -> keras.Model:
    """Return the same network with new random weights, to measure beside a trained one.

    Similarities of maps are high before any training, because the softmax of random logits is
    near uniform: `measure(at_start(model), images)` shows how much of a measure training made.

    Args:
        model: A model of this package, a `Chain`.
    """
    return type(model).from_config(model.get_config())


def _with_maps(block, maps):
    """Return the trace of a block with one kind of maps in place of both."""
    if maps is None:
        return block
    array = block.softmax if maps == "softmax" else block.maps
    return replace(block, softmax=array, maps=array)


def add_sums(sums: Sums, blocks: Iterable[BlockTrace], measures: Mapping[str, Measure]) -> None:
    """Measure the blocks of one batch, and add the results to `sums`, in float64."""

    def add(name, block, values):
        total, count = sums[name].get(block, (0, 0))
        sums[name][block] = total + np.sum(values, 0, dtype="float64"), count + len(values)

    to_compare: dict[str, dict[str, np.ndarray]] = {}
    for block in blocks:
        for name, each in measures.items():
            values = each.of_block(block)
            if values is not None and each.compare:
                to_compare.setdefault(name, {})[block.name] = values
            elif values is not None:
                add(name, block.name, values)
        del block  # Free it before the next one runs.
    for name, by_block in to_compare.items():
        for block_name, values in measures[name].compare(by_block).items():
            add(name, block_name, values)


def means(sums: Sums) -> dict[str, dict[str, np.ndarray]]:
    """Return the means, by measure and block."""
    return {
        name: {
            block: np.asarray(total / count, "float32") for block, (total, count) in blocks.items()
        }
        for name, blocks in sums.items()
    }


def _of_softmax(function):
    """Measure each head: the mean over queries of `function(maps)`."""
    return lambda block: None if block.softmax is None else function(block.softmax).mean(-1)


def _of_patches(function):
    """Measure each head: `function(maps, grid)` of the softmax's maps between patches."""

    def of_block(block):
        maps, patches = block.softmax, block.num_patches
        if maps is None or patches is None or min(maps.shape[-2:]) < patches:
            return None
        return function(maps[..., -patches:, -patches:], block.grid)

    return of_block


def _of_sinks(function, of_values=False):
    """Measure each head: `function(maps, block)`, of several queries, and of values if recorded."""

    def of_block(block):
        maps = block.maps
        lacks = maps is None or maps.shape[2] == 1 or (of_values and block.values is None)
        return None if lacks else function(maps, block)

    return of_block


def _values(block):
    """Return the values of each head, `(images, heads, keys, size)`."""
    return block.values.swapaxes(1, 2)


def _class_rows(block):
    """Return the rows of the class token, which is the first query."""
    if block.maps is None or block.grid is None or block.maps.shape[2] == block.num_patches:
        return None
    return block.maps[..., 0, :]


def _branch_ratio(branch, tokens):
    """Return the ratio of a branch of a block to the tokens that it is added to."""
    return None if branch is None else m.branch_ratio(branch, tokens)


def _of_layer(kind, function):
    """Measure the weights of the first layer of a class inside the block."""

    def of_block(block):
        layers = (layer for layer in sublayers(block.block) if isinstance(layer, kind))
        value = next((v for v in map(function, layers) if v is not None), None)
        return None if value is None else np.asarray(value, "float32")[None]

    return of_block


def _scale(layer):
    return None if layer.scale is None else m.scale_summary(as_array(layer.scaling))


def _center(layer):
    center, distance = m.attention_center(as_array(layer.pos_proj.kernel))
    return np.concatenate([center, distance[:, None]], -1)


def _with_previous(of_block, function):
    """Compare the maps of each block with those of the previous one, if the shapes agree."""

    def compare(maps):
        pairs = zip(list(maps)[1:], maps.values(), strict=False)
        return {
            name: function(previous, maps[name])
            for name, previous in pairs
            if maps[name].shape == previous.shape
        }

    return Measure(of_block, compare, "maps like the block before")


def _similarities(threshold=0.5, nearest=None, center=False):
    """Return the measures of similar attention (DeepViT)."""

    def maps_of(block):
        # A cosine over the queries is trivial for one.
        if block.maps is None or block.maps.shape[2] == 1:
            return None
        return m.centered(block.maps) if center else block.maps

    def heads(block):
        maps = maps_of(block)
        return None if maps is None else m.mean_head_similarity(maps)

    def cross_layer(maps):
        fractions = m.cross_layer_similarity(list(maps.values()), threshold, nearest)
        return {name: fractions[:, index] for index, name in enumerate(maps)}

    def adjacent(maps, others):
        return (m.map_cosines(maps, others) > threshold).mean((-2, -1))

    return {
        "head_similarity": Measure(heads),
        "map_similarity": _with_previous(maps_of, m.map_similarity),
        "adjacent_similarity": _with_previous(maps_of, adjacent),
        "cross_layer_similarity": Measure(maps_of, cross_layer),
    }


def _feature_similarity(tokens):
    *_, last = tokens.values()
    # Skip a class token that enters late, and other stages of PiT.
    tokens = {name: x for name, x in tokens.items() if x.shape[-1] == last.shape[-1]}
    count = min(x.shape[1] for x in tokens.values())
    last = last[:, -count:]
    return {name: m.feature_similarity(x[:, -count:], last) for name, x in tokens.items()}


def _cka(tokens):
    if len(next(iter(tokens.values()))) < 2:
        return {}
    return dict(zip(tokens, m.normalized_cka(list(tokens.values()))[:, None], strict=True))


SOFTMAX, PATCHES = "a softmax", "a softmax over patches"
QUERIES = "an `Attention` with more than one query"

MEASURES: dict[str, Measure] = {
    # Per head, `(heads,)`.
    "entropy": Measure(_of_softmax(m.entropy), needs=SOFTMAX, probabilities=True),
    "steepness": Measure(_of_softmax(m.steepness), needs=SOFTMAX, probabilities=True),
    "nonlocality": Measure(_of_patches(m.nonlocality), needs=PATCHES),
    "relative_distance": Measure(_of_patches(m.relative_distance), needs=PATCHES),
    "gates": Measure(
        lambda block: None if block.gates is None else block.gates[None],
        needs="gates (ConViT's GatedPositionalAttention)",
    ),
    "sink_share": Measure(_of_sinks(lambda maps, _: m.sink_share(maps)), needs=QUERIES),
    "sink_norm": Measure(
        _of_sinks(lambda maps, block: m.sink_norm(maps, block.inputs[:, None])), needs=QUERIES
    ),
    "sink_value_norm": Measure(
        _of_sinks(lambda maps, block: m.sink_norm(maps, _values(block)), True), needs=QUERIES
    ),
    "effective_rank": Measure(
        _of_sinks(lambda maps, block: m.effective_rank(maps @ _values(block)), True), needs=QUERIES
    ),
    # One number; of `cross_layer_similarity` one per block, `(blocks,)`.
    "uniform_entropy": Measure(
        lambda block: None if block.softmax is None else np.log([block.softmax.shape[-1]]),
        needs=SOFTMAX,
    ),
    "attention_branch": Measure(
        lambda block: _branch_ratio(block.attention_branch, block.attention_input),
        needs="residual branches",
    ),
    "mlp_branch": Measure(
        lambda block: _branch_ratio(block.mlp_branch, block.mlp_input), needs="residual branches"
    ),
    "outlier_tokens": Measure(
        lambda block: block.grid and m.outlier_tokens(block.outputs[:, -block.num_patches :]),
        needs="patches on a grid",
    ),
    **_similarities(),
    "feature_similarity": Measure(lambda block: block.outputs, _feature_similarity),
    "normalized_cka": Measure(
        lambda block: block.outputs, _cka, "tokens of at least two images per batch", per_batch=True
    ),
    # Maps: `(heads, queries, keys)`, the class token's row `(heads, keys)`.
    "mean_maps": Measure(lambda block: block.maps),
    "class_attention": Measure(_class_rows, needs="a class token in its attention"),
    # Of the weights: Θ `(heads, heads)`; mean and quantile ratio of Λ, `(2,)`; x, y and distance
    # of the center of positional attention, `(heads, 3)`.
    "re_attention": Measure(
        _of_layer(ReAttention, lambda layer: as_array(layer.reatten_matrix.kernel)),
        needs="ReAttention",
    ),
    "context_scale": Measure(_of_layer(ContextBroadcasting, _scale), needs="a scale of CB_S"),
    "attention_center": Measure(
        _of_layer(PositionalAttention, _center), needs="positional attention (ConViT)"
    ),
}
"""The measures by name; their functions are in `measures`."""
