"""Write a model with other classes: a folder with its memory, or a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from clinit.errors import ModelError
from clinit.extract.backbone import state_sha256
from clinit.headtrain.deployed.edit import Classes
from clinit.headtrain.deployed.model import Model
from clinit.headtrain.export.assemble import assemble, check_same_logits
from clinit.headtrain.export.memory import check_backbone
from clinit.headtrain.export.memory_file import write_memory
from clinit.headtrain.export.model_file import ModelFacts, write_model
from clinit.headtrain.export.model_folder import MEMORY_FILE, check_free, write_model_folder
from clinit.headtrain.temperature import divided

ExtraFiles = Mapping[str, Callable[[Path], object]]
Extra = Callable[[nn.Module, ModelFacts], ExtraFiles]


def no_extra(network: nn.Module, facts: ModelFacts) -> ExtraFiles:
    """Write no further files."""
    return {}


def check_apart(writes: Path, reads: Path) -> None:
    """Check that nothing is written into what is only read.

    Raises:
        ModelError: If it would be.
    """
    place, other = writes.resolve(), reads.resolve()
    if place == other or other in place.parents:
        raise ModelError(
            f"{writes} lies in {reads}, which is only read",
            remedy="Choose another place for the new model (`--out`) or for features"
            " (`--features`).",
        )


def write_classes(
    model: Model,
    classes: Classes,
    out: Path,
    extra: Extra = no_extra,
    *,
    overwrite: bool = False,
) -> ModelFacts:
    """Write the network of `model` with other classes to `out`; return what the model says.

    A folder holds what the model remembers; a file, whose name ends in .safetensors, does not.

    Args:
        model: Whose network.
        classes: Facts, rows as they were trained, and memory.
        out: The folder or the file; there must be nothing yet, unless it is overwritten.
        extra: Given the network and the facts, returns writers of further files of a folder by
            their names.
        overwrite: Whether a model that is there is replaced.

    Raises:
        ModelError: If there is something at `out` that may not be replaced.
        BackboneError: If the network cannot hold the head.
        ClinitError: If it cannot be written.
    """
    check_free(out, overwrite=overwrite)
    head = divided(classes.head, classes.facts.temperature)
    network = assemble(model.backbone, head)
    check_same_logits(network, model.backbone, head, classes.facts.transform)
    facts = replace(classes.facts, weights=state_sha256(network.state_dict()))
    if out.suffix == ".safetensors":
        write_model(network, facts, out)
        return facts
    files = dict(extra(network, facts))
    if (memory := classes.memory) is not None:
        if memory.class_names != facts.class_names:
            raise ModelError(
                "the classes of the memory are not those of the model",
                remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
            )
        check_backbone(model.depends_on, memory.backbone)
        files[MEMORY_FILE] = lambda path: write_memory(memory, path)
    write_model_folder(out, network, facts, extra=files, overwrite=overwrite)
    return facts
