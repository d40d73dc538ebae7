"""An ONNX file in ONNX Runtime."""

PACKAGES = ("onnxruntime",)


def load(path):
    """Return a function from images to float32 outputs by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (images_input,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    half = images_input.type == "tensor(float16)"

    def run(images):
        outputs = session.run(
            names, {images_input.name: images.astype("float16") if half else images}
        )
        return {name: each.astype("float32") for name, each in zip(names, outputs, strict=True)}

    return run
