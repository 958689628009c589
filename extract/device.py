"""Where to compute."""

from clinit.errors import BackboneError


def resolve_device(name: str) -> str:
    """Return the torch device for `auto`, `cpu` or `cuda`.

    Raises:
        BackboneError: If CUDA was asked for and there is none.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BackboneError(
            f"device {name} was asked for, but torch sees no CUDA device",
            remedy="Use `--device cpu`, or check the driver with `nvidia-smi`.",
        )
    return name
