"""The network of a model as ONNX, for runtimes without PyTorch.

The graph takes normalised images (`images`: batch, 3, height, width; float32) to `logits` (batch,
classes), for any batch size, and computes in float32. Its metadata contains the facts of the model
file, under the same key; what other programs need, under common names (`common`); and the SHA-256
of the ONNX file, taken with 64 zeros in place of the digest.

A file is kept only if onnxruntime computes the same logits from it as PyTorch from the network. To
classify with it, Pillow prepares the images, as timm does: nothing imports PyTorch.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from clinit.errors import BackboneError, DeviceError, ModelError
from clinit.extract.dataset.decode import Preprocessing, decode_with_pillow
from clinit.files.commit import commit_file
from clinit.files.paths import check_readable, instead_of, is_file
from clinit.headtrain.model.engine import AnsweredBatch, Logits, read_image, refused_size
from clinit.headtrain.model.facts import DOCUMENT, METADATA, parse_facts
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.predict import Rejection, default_rule
from clinit.headtrain.model.reading import Reading
from clinit.machine import cpu_count, out_of_memory

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from torch import nn

    from clinit.extract.network.transform import Transform


INPUT, OUTPUT = "images", "logits"
TOLERANCE = 1e-3
"""Largest difference of logits, relative to the largest logit: float32 sums differ by order."""
_REMEDY = "Write one with `clinit export MODEL --out FOLDER --onnx`."
_DIGEST = "clinit_sha256"
_NO_DIGEST = "0" * 64


def check_installed(*names: str) -> None:
    """Check that packages for ONNX are installed; by default all that writing takes.

    Raises:
        ModelError: If one is missing.
    """
    needed = names or ("onnx", "onnxscript", "onnxruntime")
    if missing := [name for name in needed if not find_spec(name)]:
        raise ModelError(
            f"not installed, and needed for ONNX: {', '.join(missing)}",
            remedy='Install it: pip install "clinit[onnx]".',
        )


def write_onnx(network: nn.Module, model: Model, text: str, path: Path) -> str:
    """Write `network` as ONNX to `path`, atomically, after comparing it with PyTorch on noise.

    Args:
        network: The network, on any device; it is not changed.
        model: The model that contains it.
        text: The description of the model file (`clinit.headtrain.model.network.described`).
        path: The file.

    Returns:
        The result of the comparison in words.

    Raises:
        ModelError: If a package is missing, or if onnxruntime computes something else; nothing is
            written then.
        BackboneError: If PyTorch cannot write the network as ONNX.
        ClinitError: If the file cannot be written.
    """
    import torch

    check_installed()
    plain = copy.deepcopy(network).cpu().to(memory_format=torch.contiguous_format).eval()
    transform = model.need_engine().transform
    metadata = {METADATA: text, _DIGEST: _NO_DIGEST, **common(model)}
    content = _serialised(plain, model.facts.backbone, transform, metadata)
    check = _compare(plain, content, transform)
    commit_file(path, lambda draft: draft.write_bytes(content))
    return check


def common(model: Model) -> dict[str, str]:
    """Return what a program needs to classify with the file, as metadata under common names.

    `task`, `names` and `imgsz` as in files of Ultralytics; `input_size`, `interpolation`,
    `crop_pct`, `crop_mode`, `mean` and `std` as in timm's configurations; `activation`; and the
    `temperature` by which the rows are already divided. If the model has images to choose it from,
    also the `threshold` below which an image seems to be of no class, and its `score` (`energy`;
    with a sigmoid, `probability`), of logits times temperature.
    """
    from clinit.headtrain.model.network import data_config

    facts, transform = model.facts, model.need_engine().transform
    told: dict[str, Any] = {
        "task": "classify",
        "names": dict(enumerate(facts.class_names)),
        "imgsz": transform.crop,
        **data_config(transform),
        "activation": facts.activation,
        "temperature": 1.0 if facts.temperature is None else facts.temperature.value,
    }
    with suppress(ModelError):  # no image was held out or left out
        rejection = Rejection.at_rate(model, default_rule(facts))
        told |= {"threshold": rejection.threshold, "score": rejection.rule}
    return {k: str([*v] if isinstance(v, tuple) else v) for k, v in told.items()}


def session_of(content: bytes) -> InferenceSession:
    """Return the session of onnxruntime for an ONNX file, with messages off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cpu_count()
    options.log_severity_level = 4  # errors are raised, too
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(session: InferenceSession, images: Float[np.ndarray, "batch 3 _ _"]) -> Logits:
    """Return the logits of normalised images."""
    (found,) = session.run([OUTPUT], {INPUT: np.ascontiguousarray(images)})
    return np.asarray(found)


def _serialised(
    network: nn.Module, name: str, transform: Transform, metadata: Mapping[str, str]
) -> bytes:
    import torch

    example = torch.zeros(2, 3, *transform.crop)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # future changes within PyTorch
            program: Any = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
            )
        model = program.model
        for node in model.graph.all_nodes():
            node.metadata_props.clear()  # paths and line numbers of this machine
            node.doc_string = None
        model.metadata_props.clear()
        model.metadata_props.update(metadata)
        content: bytes = program.model_proto.SerializeToString(deterministic=True)
    except Exception as error:  # an operation that ONNX lacks, or a file above 2 GiB
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BackboneError(
            f"PyTorch cannot write {name} as ONNX: {why}", remedy="Leave out --onnx."
        ) from error
    return content.replace(_NO_DIGEST.encode(), _digest(content, _NO_DIGEST).encode())


def _digest(content: bytes, digest: str) -> str:
    """Return the SHA-256 of a file, with zeros in place of the `digest` in it."""
    return hashlib.sha256(content.replace(digest.encode(), _NO_DIGEST.encode())).hexdigest()


def _compare(network: nn.Module, content: bytes, transform: Transform) -> str:
    """Return the result of the comparison in words."""
    import torch

    session, generator, pairs = session_of(content), torch.Generator().manual_seed(0), []
    for count in (1, 3):  # two sizes, because the graph must take any batch size
        shape = (count, 3, *transform.crop)
        pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        noise = transform.normalise(pixels).contiguous()
        with torch.no_grad():
            pairs.append((network(noise).numpy(), run_session(session, noise.numpy())))
    expected, found = (np.concatenate(each) for each in zip(*pairs, strict=True))
    is_same, largest = found.shape == expected.shape, float(abs(expected).max())
    others = int((found.argmax(1) != expected.argmax(1)).sum()) if is_same else len(found)
    difference = float(abs(found - expected).max()) if is_same else np.inf
    if others or not difference <= TOLERANCE * largest:  # not true of NaN
        raise ModelError(
            f"onnxruntime and PyTorch differ: logits of shape {found.shape} and {expected.shape}"
            f" differ by {difference:g} (the largest is {largest:g}), and the predicted class for"
            f" {others:,} images",
            remedy="Leave out --onnx; the ONNX file is not kept.",
        )
    return (
        f"onnxruntime and PyTorch agree on {len(expected):,} images of noise: same class, logits"
        f" within {difference:.1e} (the largest is {largest:.1f})"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Preparation(Preprocessing):
    """Resize, centre crop and normalise with Pillow: a `Transform` without PyTorch.

    The pixels of both differ by rounding.
    """

    def to_input(
        self, pixels: UInt8[np.ndarray, "_ _ 3"], max_pixels: int
    ) -> Float[np.ndarray, "3 height width"]:
        """Return the input of the graph for an image."""
        height, width = self.check_resized(pixels.shape[:2], max_pixels)
        filter_ = Image.Resampling[self.interpolation.upper()]
        image = Image.fromarray(pixels).resize((width, height), filter_)
        top, left = self.corner((height, width))
        cropped = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        mean, std = (np.array(each, np.float32) for each in (self.mean, self.std))
        scaled = np.asarray(cropped, np.float32) / 255
        return np.asarray((scaled - mean) / std).transpose(2, 0, 1)


class _OfGraph(TypedDict):
    """Facts about the network in the description of a model that the ONNX file needs."""

    transform: Preparation


@dataclass(frozen=True, slots=True, eq=False)
class OnnxEngine:
    """An ONNX graph; it computes in float32."""

    session: InferenceSession
    transform: Preparation
    device: str = "cpu"

    @property
    def depends_on(self) -> dict[str, str]:
        """Nothing: no features leave the graph."""
        return {}

    def answered(self, images: Sequence[Any], reading: Reading) -> Generator[AnsweredBatch]:
        """Yield the logits of images, in batches; threads decode the images of a batch.

        Raises:
            ModelError: If the graph cannot process images of this size.
        """

        def prepare(given: Any) -> Float[np.ndarray, "3 height width"]:
            is_file = isinstance(given, bytes)
            pixels = decode_with_pillow(given, max_pixels=reading.max_pixels) if is_file else given
            return self.transform.to_input(pixels, reading.max_pixels)

        nothing = np.zeros((3, *self.transform.crop), dtype=np.float32)
        with ThreadPoolExecutor(reading.threads) as threads:
            for start in range(0, len(images), reading.batch_size):
                rows = range(start, min(start + reading.batch_size, len(images)))
                read = [*threads.map(lambda row: read_image(images[row], prepare), rows)]
                inputs = [nothing if found is None else found for found, _ in read]
                reasons = {row: why for row, (_, why) in zip(rows, read, strict=True) if why}
                yield rows, self._logits(np.stack(inputs)), reasons
                reading.on_images(rows.stop)

    def _logits(self, images: Float[np.ndarray, "batch 3 height width"]) -> Logits:
        try:
            return run_session(self.session, images)
        except Exception as error:  # onnxruntime has a dozen types
            if out_of_memory(error):
                raise
            raise refused_size(error, self.transform.crop) from error

    def with_heads(self, heads: Any) -> OnnxEngine:
        """Raise a `ModelError`: no features leave the graph."""
        raise _no_model("an ONNX file classifies images only")

    def fingerprint(self, dtype: str) -> Any:
        """Raise a `ModelError`: no features leave the graph."""
        raise _no_model("an ONNX file classifies images only")


def load_onnx(path: Path, device: str = "auto") -> Model:
    """Load an ONNX file written by `clinit export --onnx`.

    Neither PyTorch weights nor a timm network are needed.

    Args:
        path: The file.
        device: `auto` or `cpu`.

    Raises:
        ModelError: If the file is missing, has changed, or has another format.
        DeviceError: If the device is another one.
    """
    check_installed("onnxruntime")
    if device.startswith("cuda"):
        raise DeviceError(
            "an ONNX file is computed on the CPU",
            remedy="Use --device cpu; or give the model folder, whose network takes a GPU.",
        )
    if not is_file(path):
        raise ModelError(f"no model at {path}", remedy=instead_of(path, _REMEDY, is_file))
    check_readable(path, ModelError)
    content = path.read_bytes()
    try:
        session = session_of(content)
        metadata = session.get_modelmeta().custom_metadata_map
    except Exception as error:  # onnxruntime raises a dozen types
        why = " ".join(str(error).split())[:200]
        raise _no_model(f"{path} is not an ONNX model: {why}") from error
    digest, text = metadata.get(_DIGEST, ""), metadata.get(METADATA)
    if text is None:
        raise _no_model(f"{path} does not name its classes: it is no file of `clinit export`")
    if len(digest) != len(_NO_DIGEST) or digest != _digest(content, digest):
        raise _no_model(f"{path} has changed since it was written")
    facts, every = parse_facts(text, path)
    told = DOCUMENT.convert(every, _OfGraph, origin=f"the description in {path}")
    engine = OnnxEngine(session, told["transform"])
    return Model(facts=facts, linear=None, origin=str(path), engine=engine)


def _no_model(why: str) -> ModelError:
    return ModelError(why, remedy=_REMEDY)
