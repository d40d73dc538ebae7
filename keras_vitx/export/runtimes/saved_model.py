"""A SavedModel in TensorFlow."""

PACKAGES = ("tensorflow",)


def load(path):
    """Return a function from images to float32 outputs by name."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signatures = {}
    for signature in loaded.signatures.values():
        (spec,) = signature.structured_input_signature[1].values()
        if spec.dtype == tf.string:  # Encoded images.
            continue
        signatures.setdefault(tuple(spec.shape[1:3]), (signature, spec))

    def run(images):
        signature, spec = signatures.get(images.shape[1:3]) or signatures[next(iter(signatures))]
        outputs = signature(**{spec.name: tf.cast(images, spec.dtype)})
        # NumPy has no bfloat16.
        return {name: tf.cast(each, "float32").numpy() for name, each in outputs.items()}

    return run
