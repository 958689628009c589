"""A model at work in onnxruntime: images in, class names with probabilities out.

Nothing is needed but the ONNX file: no weights of PyTorch, no network of timm. It computes in
float32, whatever the arithmetic of the extraction was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from clinit.errors import DeviceError, ModelError
from clinit.extract.loader import ImageBatch
from clinit.headtrain.export.model_file import ModelFacts
from clinit.headtrain.export.onnx_file import INPUT, OUTPUT, check_installed, open_onnx, run_session
from clinit.headtrain.export.prediction import Predictor

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


@dataclass(frozen=True, slots=True, eq=False)
class OnnxClassifier(Predictor):
    """An ONNX graph with named classes."""

    facts: ModelFacts
    session: InferenceSession

    def __repr__(self) -> str:
        return f"<OnnxClassifier: {self.facts}>"

    def logits(self, batch: ImageBatch) -> Float[Tensor, "images classes"]:
        """Return the answers of the network to resized pixels.

        Raises:
            ModelError: If it does not compute on them.
        """
        images = self.facts.transform.normalise(batch.pixels)
        try:
            return run_session(self.session, images)
        except Exception as error:  # onnxruntime has a dozen types of its own
            raise ModelError(
                f"the ONNX graph does not compute: {' '.join(str(error).split())[:200]}",
                remedy="Export the run again with --onnx.",
            ) from error


def load_onnx(path: str | os.PathLike[str], *, device: str = "auto") -> OnnxClassifier:
    """Load an ONNX file written by `clinit export --onnx`.

    Args:
        path: The file.
        device: `auto` and `cpu` compute on the CPU; `cuda` or `cuda:<index>` need the build of
            onnxruntime for GPUs.

    Raises:
        ModelError: If there is no such file, it has changed, or is of another form.
        DeviceError: If onnxruntime cannot use the device.
    """
    check_installed()
    import onnxruntime

    if (
        device.startswith("cuda")
        and "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
    ):
        raise DeviceError(
            f"onnxruntime {onnxruntime.__version__} has no CUDA: it was not built for GPUs",
            remedy="Use --device cpu, or install onnxruntime-gpu in place of onnxruntime.",
        )
    session, facts = open_onnx(Path(path), device=device)
    expected = [(INPUT, [3, *facts.transform.crop]), (OUTPUT, [facts.num_classes])]
    ends = (*session.get_inputs(), *session.get_outputs())
    found = [(end.name, end.shape[1:]) for end in ends]
    if found != expected:
        raise ModelError(
            f"the graph in {path} goes from {found[0]} to {found[-1]}, its description says from"
            f" {expected[0]} to {expected[1]}",
            remedy="Export the run again with --onnx.",
        )
    return OnnxClassifier(facts, session)
