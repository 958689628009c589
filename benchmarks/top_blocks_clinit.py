"""The contender clinit of `benchmarks/top_blocks.py`: the parts of `clinit train-top`, in turns."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from harness import Taker
from top_blocks_workload import TopBlocksWorkload

from clinit.extract.work.recorded import reload
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import random_task_rows
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.top.activations import PoolActivations, TaskReader, Trunk
from clinit.headtrain.top.experiment import features, top_method
from clinit.headtrain.top.images import Storage, TopImages
from clinit.headtrain.top.inputs import ImageData, TopInputs, prepare_runs
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.headtrain.top.training import top_optimizer, train_steps
from clinit.machine import Stopwatch


class DecodedRows:
    """Rows computed from pixels in memory on each access."""

    def __init__(self, pixels: torch.Tensor, trunk: Trunk) -> None:
        self._pixels, self._trunk = pixels, trunk

    def __len__(self) -> int:
        return len(self._pixels)

    def stream(self, batches: Sequence[np.ndarray]) -> Generator[torch.Tensor]:
        """Yield the activations of batches of rows."""
        for rows in batches:
            yield self._trunk.of_pixels(self._pixels[torch.from_numpy(rows)])


def inputs_of(work: TopBlocksWorkload, study: Study) -> TopInputs:
    """Build the stream of one task, with rows from stored activations, decoded images or files."""
    caches, source = work.folder / "caches", work.options["rows"]
    budget = 10**12 if source == "stored" else 0
    storage = Storage(folder=work.folder / "trunk", budget=budget, workers=work.options["workers"])
    weights, device = work.folder / "weights.safetensors", work.options["device"]
    images = TopImages(base=caches / "base", new=caches / "new", storage=storage, weights=weights)
    data = ImageData.open(images)
    inputs = prepare_runs(data, [study])
    if source != "decoded":
        return inputs
    backbone, transform = reload(data.sides[0].cache.split("train"), weights=weights, device=device)
    trunk = Trunk(backbone.config, cut_network(backbone.network, inputs.top.top_blocks), transform)
    train, val = (
        PoolActivations(
            [DecodedRows(torch.from_numpy(np.load(work.folder / f"{split}_x.npy")), trunk)],
            torch.device(device),
        )
        for split in ("train", "val")
    )
    return replace(inputs, train=train, val=val)


def clinit(work: TopBlocksWorkload) -> Taker:
    """Train and evaluate as `run_top` does in the middle of a task."""
    options, device = work.options, torch.device(work.options["device"])
    settings = {
        "method": options["method"],
        "top_blocks": len(work.facts["blocks"]),
        "full_rank": options["full_rank"],
        "rank": options["rank"],
        "precision": options["precision"],
        "ewc_samples": work.batch,
        "tasks": 1,
        "iterations": options["total"],
        "buffer": options["buffer"],
        "batch_size": work.batch,
        "seed": options["seed"],
        "device": options["device"],
        "init": "random",
        "lr": options["lr"],
    }
    study = Study.of(settings, top=True).resolved()
    inputs = inputs_of(work, study)
    (task,) = inputs.experiment.scenario.tasks
    network, old_rows = copy.deepcopy(inputs.network), Rows.of_head(inputs.experiment.head)
    model = PlasticModel(network, cut_network(network, inputs.top.top_blocks), old_rows, study)
    model.grow(random_task_rows(study.stream.seed, task.number, len(task.classes), model.dim))
    method = top_method(study)
    rows = inputs.experiment.plan.rows(task)
    schedule = inputs.experiment.plan.schedule(rows)
    old = rows.rows[: rows.num_old]
    reader = TaskReader(
        inputs.experiment.scenario.train,
        inputs.train,
        new=rows.rows[rows.num_old :],
        old=old if len(old) else inputs.experiment.plan.base_sample(method.base_sample),
    )
    model.open(torch.Generator().manual_seed(study.stream.seed))
    method.begin(model, task, reader)
    optimizer = top_optimizer(network, study.training, inputs.top, study.stream.iterations)
    watch, done = Stopwatch(device), 0

    def train() -> None:
        nonlocal done
        part = slice(done, done + work.steps)
        drawn = [rows.rows[batch] for batch in schedule.batches[part]]
        # Opened anew for each turn, so that no image is decoded between turns.
        stream = reader.stream(drawn, schedule.num_new[part].tolist())
        with closing(stream) as batches, watch.phase("train"):
            for _ in train_steps(model, method, batches, optimizer, range(done, part.stop)):
                pass
        done = part.stop

    def evaluate() -> None:
        found = features(model, inputs.val, tested)
        bank = Bank(model.rows(), [study.training], device)
        evaluate(bank, LabelledRows(found, labels))

    tested = inputs.experiment.scenario.val.rows_between(0, task.stop)
    labels = torch.from_numpy(inputs.experiment.scenario.val.labels[tested]).to(device)
    return Taker(train, evaluate)
