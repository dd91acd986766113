"""Pretraining: train one model on the data of all clients, as a checkpoint that runs begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..algorithms.centralized import Centralized
from ..config.checkpoint import save_checkpoint
from ..config.config import Config
from ..core.module_copies import copy_module
from ..core.tensors import Tensors, load_into_net
from ..runs.store import RunFolder
from .tasks import RunTask, create_or_reopen, read_federation


def prepare_pretraining(config: Config, checkpoint: Path) -> RunTask:
    """Prepare the run that trains a checkpoint, in a locked folder beside it."""
    federation = read_federation(config)
    # before the algorithm changes: the head is as deep as the algorithm to come needs it
    config = config.fill_model_defaults(federation)
    if not isinstance(config.algorithm, Centralized):
        config = replace(config, algorithm=Centralized(), algorithm_name="centralized")
    folder = RunFolder(checkpoint.with_name(f"{checkpoint.name}.run"))
    plan = config.build_plan(federation)
    create_or_reopen(folder, config.to_toml(), "-o")
    return RunTask(folder, config, plan)


def save_pretrained(task: RunTask, checkpoint: Path) -> None:
    """Write the model of a finished pretraining as a checkpoint."""
    server = task.folder.restore_newest_commit(task.plan.federation.sizes())
    assert server is not None  # the last round has just been committed
    net = copy_module(task.plan.template)  # has what is given
    load_into_net(net, server.average | server.model)
    save_checkpoint(checkpoint, Tensors(net.state_dict()))
