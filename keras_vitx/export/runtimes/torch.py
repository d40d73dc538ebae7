"""A program of torch.export in PyTorch."""

PACKAGES = ("torch",)


def load(path):
    """Return a function from images to float32 outputs by name."""
    import torch

    module = torch.export.load(path).module()

    def run(images):
        with torch.no_grad():
            outputs = module(torch.from_numpy(images))
        return {name: each.float().numpy() for name, each in outputs.items()}

    return run
