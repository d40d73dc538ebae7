"""Invalid arguments: one ValueError that names the argument and the value received."""

import pytest

from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    ContextBroadcasting,
    ConvStem,
    GatedPositionalAttention,
    LocalMapConvolution,
    PositionalAttention,
    RefinedAttention,
    Refinement,
    ResidualRefinement,
    SharedAttention,
    Temperature,
    TokenDownsampling,
    UniformHeads,
)

pytestmark = pytest.mark.backend_free

MAPS = (None, 2, 5, 5)
TOKENS = (None, 5, 8)
# The call, the argument at fault, the value received.
WRONG = {
    "even kernel": (lambda: LocalMapConvolution(2), "kernel_size", "kernel_size=2"),
    "no kernel": (lambda: Refinement(kernel_size=0), "kernel_size", "kernel_size=0"),
    "negative kernel": (lambda: Refinement(kernel_size=-1), "kernel_size", "kernel_size=-1"),
    "even kernel inside": (
        lambda: ResidualRefinement(kernel_size=4),
        "kernel_size",
        "kernel_size=4",
    ),
    "no expansion": (lambda: Refinement(expansion=0), "expansion", "expansion=0"),
    "no expansion inside": (lambda: ResidualRefinement(0), "expansion", "expansion=0"),
    "no expansion in attention": (
        lambda: RefinedAttention(2, expansion=-1),
        "expansion",
        "expansion=-1",
    ),
    "constraint": (lambda: LocalMapConvolution(3, "rows"), "constraint", "'rows'"),
    "constraint inside": (lambda: Refinement(constraint="rows"), "constraint", "'rows'"),
    "spatial without a grid": (
        lambda: LocalMapConvolution(3, "spatial"),
        "grid",
        "grid=None",
    ),
    "spatial beyond the keys": (
        lambda: LocalMapConvolution(3, "spatial", (2, 3)).build(MAPS),
        "grid",
        "grid=(2, 3), keys=5",
    ),
    "heads without a square": (lambda: GatedPositionalAttention(6), "num_heads", "num_heads=6"),
    "heads without a square, PSA": (lambda: PositionalAttention(2), "num_heads", "num_heads=2"),
    "start": (lambda: PositionalAttention(4, conv_start="half"), "conv_start", "'half'"),
    "grid of fewer": (
        lambda: GatedPositionalAttention(4, grid=(2, 2)).build(TOKENS),
        "grid",
        "grid=(2, 2), tokens=5",
    ),
    "no square of patches": (
        lambda: PositionalAttention(4).build(TOKENS),
        "grid",
        "grid=None, tokens=5",
    ),
    "carried heads": (
        lambda: SharedAttention(2).build((TOKENS, (None, 4, 5, 5))),
        "maps",
        "(None, 4, 5, 5)",
    ),
    "carried tokens": (
        lambda: SharedAttention(2).build((TOKENS, (None, 2, 5, 6))),
        "maps",
        "(None, 2, 5, 6)",
    ),
    "carried heads, added": (
        lambda: AccumulatingAttention(4).build((TOKENS, MAPS)),
        "maps",
        "(None, 2, 5, 5)",
    ),
    "carried tokens, added": (
        lambda: AccumulatingAttention(2).build((TOKENS, (None, 2, 6, 5))),
        "maps",
        "(None, 2, 6, 5)",
    ),
    "no temperature": (lambda: Temperature(0), "temperature", "0"),
    "negative temperature": (lambda: Temperature(-0.5, learnable=True), "temperature", "-0.5"),
    "context": (lambda: ContextBroadcasting("median"), "context", "'median'"),
    "scaled product": (
        lambda: ContextBroadcasting("class_product", scale=0.1),
        "scale",
        "scale=0.1",
    ),
    "no uniform head": (lambda: UniformHeads(0), "count", "0"),
    "odd patches": (lambda: ConvStem(8, patch_size=7), "patch_size", "patch_size=7"),
    "patches that do not fit": (
        lambda: ConvStem(8, patch_size=4).build((None, 8, 10, 3)),
        "patch_size",
        "(8, 10, 3), patch_size=4; the nearest is (8, 12)",
    ),
    "no multiple": (
        lambda: TokenDownsampling(12, (2, 2)).build(TOKENS),
        "dim",
        "dim=12, width=8",
    ),
    "another grid": (
        lambda: TokenDownsampling(16, (2, 3)).build(TOKENS),
        "grid",
        "grid=(2, 3), num_prefix_tokens=1, tokens=5",
    ),
    "residual scale": (
        lambda: Block(Attention(2), MLP(), residual_scale=0),
        "residual_scale",
        "residual_scale=0",
    ),
    "no hidden units": (
        lambda: MLP(0.1).build(TOKENS),
        "mlp_ratio",
        "mlp_ratio=0.1, hidden=None, width=8",
    ),
    **{
        f"heads that do not divide, {layer.__name__}": (
            lambda layer=layer, shape=shape, heads=heads: layer(heads).build(shape),
            "num_heads",
            f"num_heads={heads}, width=8",
        )
        for layer, heads, shape in (
            (SharedAttention, 3, (TOKENS, (None, 3, 5, 5))),
            (AccumulatingAttention, 3, (TOKENS, (None, 3, 5, 5))),
            (PositionalAttention, 9, (None, 4, 8)),
            (GatedPositionalAttention, 9, (None, 4, 8)),
        )
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    make, argument, received = WRONG[name]
    with pytest.raises(ValueError) as error:
        make()
    message, _, found = str(error.value).partition("Received: ")
    assert argument in message
    assert received in found


def test_what_happens_to_heads_left_over():
    with pytest.raises(ValueError, match=r"'partial', .*first 4 .*other 2 .*random"):
        GatedPositionalAttention(6)
    GatedPositionalAttention(6, conv_start="partial")
    GatedPositionalAttention(6, conv_start=False)


def test_carried_maps_of_another_size_at_the_call():
    from harness import numbers

    x, maps = numbers((2, 5, 8)), numbers((2, 2, 4, 4))
    for make in (SharedAttention, AccumulatingAttention):
        with pytest.raises(ValueError, match=r"Received: maps of shape \(2, 2, 4, 4\)"):
            make(2)((x, maps))
