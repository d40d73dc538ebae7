"""An OpenVINO model on the CPU."""

PACKAGES = ("openvino",)


def load(path):
    """Return a function from images to float32 outputs by name."""
    import openvino
    from openvino import properties

    # In the precision of the file, where a CPU would choose bfloat16 by itself.
    model = openvino.compile_model(
        path, "CPU", {properties.hint.inference_precision: openvino.Type.f32}
    )
    names = [output.get_any_name() for output in model.outputs]

    def run(images):
        outputs = model(images)
        return {name: outputs[index].astype("float32") for index, name in enumerate(names)}

    return run
