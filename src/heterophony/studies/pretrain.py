"""``pretrain``: train one model on the data of all clients, as a checkpoint to begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..algorithms.centralized import Centralized
from ..config.checkpoint import save_checkpoint
from ..core.net import copy_module
from ..core.tensors import Tensors, load_into_net
from ..runs.folder import RunFolder
from .spec import RunSpec


def prepare_pretraining(spec: RunSpec, checkpoint: Path) -> tuple[RunFolder, RunSpec]:
    """Create the run that trains a checkpoint, in a folder beside it, or open it again."""
    spec = spec.load_data()  # before the algorithm changes, which decides the depth of the head
    if not isinstance(spec.config.algorithm, Centralized):
        central = replace(spec.config, algorithm=Centralized(), algorithm_name="centralized")
        spec = replace(spec, config=central)
    folder = RunFolder(checkpoint.with_name(f"{checkpoint.name}.run"))
    spec.build_plan()  # raises before anything is written
    spec.open_folder(folder, "-o")
    folder.close()
    return folder, spec


def save_pretrained(folder: RunFolder, spec: RunSpec, checkpoint: Path) -> None:
    """Write the model of a finished pretraining as a checkpoint."""
    plan = spec.build_plan()
    server = folder.load_newest_commit(plan.federation.sizes())
    assert server is not None  # the last round has just been committed
    net = copy_module(plan.template)  # has the given tensors
    load_into_net(net, server.average | server.model)
    save_checkpoint(checkpoint, Tensors(net.state_dict()))
