"""The limits of a device: matrix products and bytes moved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from gpu_setting import Lines, Setting

HEADINGS = ("limit", "shape", "float32", "TF32", "bf16", "float64")
NOTE = """\
TFLOP/s of one matrix product, launched repeatedly; GB/s of copies. Copies within the memory of the
device count reading and writing."""


def measure(setting: Setting) -> Lines:
    """Yield a line for each shape and for each way of moving bytes; fill `setting.limits`."""
    size, rows = setting.scale.heads, setting.scale.rows
    classes, side = size.base + size.new, setting.scale.square
    most = max(setting.scale.banks)
    shapes = {
        "square": (side, side, side),
        "one head": (rows, size.dim, classes),
        f"bank of {most}": (rows, size.dim, most * classes),
        "statistics": (size.dim, 128 * size.dim, size.dim),
    }
    for name, shape in shapes.items():
        rates = [_rate(setting, name, shape, each) for each in ("float32", "tf32", "bf16")]
        rates.append(_rate(setting, name, shape, "float64"))
        yield [name, " x ".join(f"{each:,}" for each in shape), *rates]
    for name, moved, run in _copies(setting):
        rate = moved / setting.seconds(run)
        setting.limits[name] = rate
        yield [name, f"{setting.scale.copied:,} bytes", f"{rate / 1e9:,.1f} GB/s", "", "", ""]


def _rate(setting: Setting, name: str, shape: tuple[int, int, int], precision: str) -> str:
    if precision == "tf32" and setting.device.type != "cuda":
        return ""
    kinds = {"bf16": torch.bfloat16, "float64": torch.float64}
    kind = kinds.get(precision, torch.float32)
    left, inner, right = shape
    one = torch.randn(left, inner, device=setting.device).to(kind)
    other = torch.randn(right, inner, device=setting.device).to(kind)
    out = torch.empty(left, right, device=setting.device, dtype=kind)
    with _switched(precision):
        seconds = setting.seconds(lambda: torch.mm(one, other.t(), out=out))
    rate = 2 * left * inner * right / seconds
    setting.limits[f"{name}, {precision}"] = rate
    return f"{rate / 1e12:.3g}"


def _switched(precision: str) -> AbstractContextManager[None]:
    """Allow TF32 in float32 products only if asked for; other types are not affected."""
    from clinit.headtrain.protocol.train.heads import products_in

    return products_in(precision) if precision in ("float32", "tf32") else nullcontext()


def _copies(setting: Setting) -> list[tuple[str, int, Callable[[], object]]]:
    """Return ways of moving bytes: name, number of bytes, and the function."""
    size, device = setting.scale.copied, setting.device
    there = torch.empty(size, dtype=torch.uint8, device=device)
    other = torch.empty_like(there)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return [
        ("device memory", 2 * size, lambda: other.copy_(there)),
        ("host to device", size, lambda: there.copy_(host, non_blocking=True)),
        ("device to host", size, lambda: host.copy_(there, non_blocking=True)),
    ]
