"""A file of `torch.save`: a dictionary of tensors, read where they lie.

Only tensors are read: a pickle can run any program, so that whatever else it holds is refused by
PyTorch itself (`weights_only`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import ONE_PER_ROW, Labels, StoredFeatures, Take

if TYPE_CHECKING:
    from torch import Tensor

_REMEDY = (
    'Write it with `torch.save({"features": features, "labels": labels}, path)`, both tensors, or'
    " as safetensors."
)


@dataclass(frozen=True)
class TorchFile:
    """A `.pt` or `.pth` file."""

    path: Path

    def names(self) -> tuple[str, ...] | None:
        """Return the names of the tensors; None for a file of a single one."""
        return None if self._tensors.keys() == {""} else tuple(sorted(self._tensors))

    def features(self, name: str) -> StoredFeatures:
        """Return a tensor; its numbers stay on the disk until they are used."""
        tensor = self._tensors[name]
        origin = f"`{name}` of {self.path}" if name else str(self.path)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return StoredFeatures(origin, tuple(tensor.shape), dtype, partial(self._open, tensor))

    @contextmanager
    def _open(self, tensor: Tensor, folder: Path) -> Iterator[Take]:
        import torch

        def take(rows: np.ndarray) -> np.ndarray:
            picked: np.ndarray = tensor[torch.from_numpy(rows)].float().numpy()
            return picked

        yield take

    def labels(self, name: str) -> Labels:
        """Return a tensor."""
        tensor = self._tensors[name]
        kind = str(tensor.dtype).removeprefix("torch.")
        if not kind.lstrip("u").startswith("int") or tensor.ndim != 1:
            raise CacheError(
                f"`{name}` of {self.path} holds {tensor.dtype} of shape {tuple(tensor.shape)},"
                " expected integers (rows,)",
                remedy=ONE_PER_ROW,
            )
        labels: np.ndarray = tensor.numpy()
        return labels

    def class_names(self) -> None:
        """Return None: tensors alone are read."""

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        content = self._load()
        from torch import Tensor

        found = {"": content} if isinstance(content, Tensor) else content
        if not isinstance(found, dict):
            raise self._refusal(f"it holds a {type(content).__name__}, not tensors by name")
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise self._refusal(
                    f"it holds {str(name)[:60]!r}, a {type(value).__name__}, beside tensors"
                )
            self._check(name, value)
        # What was saved while it was trained on cannot be turned into an array.
        return {name: value.detach() for name, value in found.items()}

    def _load(self) -> Any:
        import torch

        try:
            return torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # a pickle raises whatever it meets
            why = " ".join(str(error).split())
            if "mmap can only be used" in why:
                why = "it is in the format of PyTorch before 1.6"
            elif "weights_only" in why.lower() or "Unsupported" in why:
                why = "it holds other objects than tensors, which could run any program"
            raise self._refusal(why[:200] or type(error).__name__) from error

    def _check(self, name: str, tensor: Tensor) -> None:
        """Refuse a tensor that is not as large as the file bears out, or is no plain one."""
        import torch

        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise self._refusal(f"{name!r} is no dense tensor")
        size = self.path.stat().st_size
        if tensor.numel() * tensor.element_size() > size:
            raise self._refusal(
                f"{name!r} declares {tensor.numel() * tensor.element_size():,} bytes in a file of"
                f" {size:,}"
            )

    def _refusal(self, why: str) -> CacheError:
        return CacheError(f"cannot read {self.path} as a file of tensors: {why}", remedy=_REMEDY)
