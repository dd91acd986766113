"""``hp.load``: the result of a run folder, with data and net read when needed; and pretrained checkpoints."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..algorithms.centralized import Centralized
from ..config.checkpoint import save_checkpoint
from ..config.config import Config
from ..config.reading import resolve_config
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, DataError, FolderError
from ..core.files import read_json
from ..core.net import copy_module
from ..core.own_modules import is_own_code
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from ..core.tensors import Tensors, load_into_net
from ..data.federation import Federation
from ..data.folders import OWN_DATA, ExampleSpec
from ..jobs.client_store import BOARDS_RECORD
from ..jobs.plan import Plan
from ..runs.events import StartEvent, get_start
from ..runs.folder import RunFolder
from ..runs.result import Result
from ..runs.run_index import list_member_runs
from .run import Model
from .spec import RunSpec, find_own_objects, read_federation

# objects of the user that a run's models need: keyword of hp.load, and words for messages
OBJECTS = {
    "data": ("federation", "data"),
    "model": ("model", "a model"),
    "algorithm": ("algorithm", "an algorithm"),
}


def load(
    folder: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    algorithm: Algorithm | None = None,
    trust: bool = False,
) -> Result:
    """Return the result of a run, however it was started and whether or not it has finished.

    Numbers need only the folder. Models also need the data, the net and the algorithm, which are
    rebuilt from ``config.toml``. If the run was started from Python with objects of your own, pass
    the ``federation``, the ``model`` or the ``algorithm``. An algorithm that the folder names by
    ``package.module:Class`` is imported only with ``trust``, unless your program has imported it.
    """
    run = RunFolder(Path(folder))
    if not run.config_file.is_file():
        raise FolderError(explain_missing_run(run.path))
    result = Result(run, RunLoader(run, federation, model, algorithm, trust).build_plan)
    if not result.events:
        raise FolderError(f"{folder} has not started: it has no events yet")
    get_start(result.events)  # raises if the file is damaged
    return result


def explain_missing_run(path: Path) -> str:
    """Return the error message for a folder that is not a run; the message names a run to load instead."""
    members = list_member_runs(path) if path.is_dir() else []
    if members:
        return f"{path} holds {len(members)} runs; load one of them, as in hp.load('{members[0]}')"
    return f"{path} is not a run folder: it has no config.toml"


@dataclass(frozen=True)
class RunLoader:
    """Rebuilds the plan of a run from its folder and from objects that the user passes."""

    folder: RunFolder
    federation: Federation | None
    model: Model | None
    algorithm: Algorithm | None
    trust: bool = False

    def build_plan(self) -> Plan:
        """Build the run's plan; raise DataError if the data differ from the run's data."""
        path = self.folder.path
        start = get_start(list(self.folder.iterate_events()))
        config = self.read_config()
        if (path / BOARDS_RECORD).is_file():
            federation = self.federation or read_board_federation(config, path, start["clients"])
            return config.build_board_plan(federation)
        own_model = None if isinstance(self.model, str) else self.model
        federation = self.federation or read_federation(config)
        self.check_data(federation, start)
        return RunSpec(config, federation, own_model).build_plan()

    def read_config(self) -> Config:
        """Read the run's configuration; objects that the user passed replace its sections."""
        text = self.folder.read_config_text()
        try:
            table: dict[str, Any] = tomllib.loads(text)
        except ValueError as error:
            raise FolderError(f"{self.folder.config_file} is damaged: {error}") from None
        objects = find_own_objects(text)
        given = {"data": self.federation, "model": self.model, "algorithm": self.algorithm}
        for place, (keyword, what) in OBJECTS.items():
            if place in objects and given[place] is None:
                raise DataError(
                    f"{self.folder.path} was started from Python with {what} of your own"
                    f" ('{objects[place]}'); to use its models, pass it:"
                    f" hp.load('{self.folder.path}', ..., {keyword}=...)"
                )
        for place in objects:  # models do not depend on participation, loss or metrics
            table.pop(place, None)
        table.pop("objects", None)
        if self.model is not None:
            name = self.model if isinstance(self.model, str) else None
            table["model"] = {**table.get("model", {}), "name": name}
        name = table.get("algorithm", {}).get("name", "")
        if self.algorithm is not None:
            table["algorithm"] = {}
        config = self.build_config(table, name)
        if self.algorithm is not None:
            config = replace(config, algorithm=self.algorithm, algorithm_name=name or "own")
        return config

    def build_config(self, table: dict[str, Any], name: str) -> Config:
        """Build the configuration of a run; raise DataError if its algorithm cannot be imported."""
        try:
            return resolve_config(table, trust=self.trust)
        except ConfigError as error:
            if not is_own_code(name) or not str(error).startswith("algorithm.name"):
                raise
            raise DataError(
                f"{self.folder.path} was started from Python with an algorithm of your own ('{name}'); to use"
                f" its models, pass it: hp.load('{self.folder.path}', ..., algorithm=...) ({error})"
            ) from None

    def check_data(self, federation: Federation, start: StartEvent) -> None:
        """Raise DataError if the data are not those the run was started with."""
        if start["data_sha256"] != federation.sha256:
            raise DataError(
                f"the data are not those of the run in {self.folder.path} (data_sha256 differs);"
                " pass the federation it was started with"
            )


def read_board_federation(config: Config, path: Path, clients: Sequence[str]) -> Federation:
    """Return the federation of a run on boards; the clients' own examples stay on the boards."""
    if config.data.name != OWN_DATA:
        return read_federation(config)
    spec = ExampleSpec.from_config(config.data.shape, config.data.classes)
    try:
        dtype = getattr(
            torch, next(iter(read_json(path / BOARDS_RECORD)["clients"].values()))["type"]
        )
    except (KeyError, StopIteration, AttributeError, TypeError):
        raise FolderError(f"{path / BOARDS_RECORD} is damaged: it lists no client") from None
    scale = BYTES_TO_PLUS_MINUS_ONE if dtype == torch.uint8 else Scale()
    nothing = torch.empty(0, dtype=torch.int64)
    rows = dict.fromkeys(clients, nothing)
    x = torch.empty(0, *spec.shape, dtype=dtype)
    return Federation(OWN_DATA, x, nothing, scale, spec.labels, rows, rows).with_transform(
        config.data.transform
    )


# Pretraining --------------------------------------------------------------------------------------


def prepare_pretraining(spec: RunSpec, checkpoint: Path) -> tuple[RunFolder, RunSpec]:
    """Create or reopen the run that trains a checkpoint, in a folder next to the checkpoint."""
    # before the algorithm changes: the depth of the head depends on it
    spec = spec.load_data()
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
    net = copy_module(plan.template)  # contains the given tensors, too
    load_into_net(net, server.average | server.model)
    save_checkpoint(checkpoint, Tensors(net.state_dict()))
