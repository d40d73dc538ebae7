"""Arguments of layers, and what they are built for or called with."""

from keras_vitx import layers as kvl
from keras_vitx.layers import MLP, Attention, Block, LocalMapConvolution, PatchEmbedding

BACKEND_FREE = True
IMAGES = (None, 8, 10, 3)

ERRORS = {
    ValueError: {
        "`kernel_size` must be odd. Received: 2": lambda: LocalMapConvolution(2),
        "`constraint` must be one of ... Received: 'rows'": lambda: LocalMapConvolution(3, "rows"),
        "`conv_start` must be one of ... Received: 'half'": lambda: kvl.PositionalAttention(
            4, conv_start="half"
        ),
        "`temperature` must be a number in (0, inf). Received: 0": lambda: kvl.Temperature(0),
        "`input_shape` must have sides that are multiples of the patch size 4. Received: "
        "input_shape=(8, 10, 3); the nearest is (8, 12)": lambda: kvl.ConvStem(8, (4,), 4).build(
            IMAGES
        ),
        "`input_shape` ...=(None, 8, 3).": lambda: PatchEmbedding(6, 4).build((None, None, 8, 3)),
        "at least the patch size 4. ...=(3, 8, 3)": (
            lambda: PatchEmbedding(6, 4, 2).build((None, 3, 8, 3))
        ),
        "`residual_scale` must be a number in (0, inf). Received: 0": (
            lambda: Block(Attention(2), MLP(), residual_scale=0)
        ),
        "`attention` must be of type `Layer`. Received: <class": lambda: Block(Attention, MLP()),
        "`num_heads` must divide the width of the tokens, 8. Received: 3": (
            lambda: Attention(3).build((None, 5, 8))
        ),
    }
}
