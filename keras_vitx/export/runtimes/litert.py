"""A LiteRT file in its interpreter."""

import os

PACKAGES = ("ai-edge-litert",)


def load(path):
    """Return a function from images to float32 outputs by name."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path, num_threads=os.cpu_count()).get_signature_runner("serving_default")

    def run(images):
        outputs = runner(images=images)
        return {name: each.astype("float32") for name, each in outputs.items()}

    return run
