"""``load``: the result of any run folder; its data and its net are built when a model is asked for."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..algorithms import get_algorithm_class, is_own_code
from ..config.config import Config
from ..config.reading import read_config, resolve_config
from ..config.short_keys import find_choice
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, DataError, FolderError
from ..core.files import read_json
from ..core.net import Net
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from ..data.client_folders import OWN_DATA, ExampleSpec
from ..data.federation import Federation
from ..jobs.client_store import BOARDS_RECORD
from ..jobs.plan import Plan
from ..models import MODEL_DESCRIPTIONS
from ..runs.events import StartEvent, get_start
from ..runs.folder import RunFolder
from ..runs.result import Result
from ..runs.run_index import list_member_runs
from .own import prepare_own_net
from .run import Model
from .tasks import read_federation


def load(
    folder: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    algorithm: Algorithm | None = None,
    trust: bool = False,
) -> Result:
    """Return the result of a run: begun anywhere, finished or not.

    Numbers need nothing but the folder. Models need the data: they are read again as
    ``config.toml`` says. For a run that was begun from Python, pass the ``federation``, and the
    ``model`` and the ``algorithm`` if they are your own. An algorithm that the folder names by
    ``package.module:Class`` is imported only with ``trust``, unless your program has imported it.
    """
    run = RunFolder(Path(folder))
    if not run.config_file.is_file():
        raise FolderError(explain_missing_run(run.path))
    result = Result(run, RunLoader(run, federation, model, algorithm, trust).build_plan)
    if not result.events:
        raise FolderError(f"{folder} has not begun: it holds no events yet")
    get_start(result.events)  # raises if the file is damaged
    return result


def explain_missing_run(path: Path) -> str:
    members = list_member_runs(path) if path.is_dir() else []
    if members:
        return f"{path} holds {len(members)} runs; load one of them, as in hp.load('{members[0]}')"
    return f"{path} is not a run folder: it has no config.toml"


@dataclass(frozen=True)
class RunLoader:
    """Builds the plan of a run again, from its folder and from what the user passes."""

    folder: RunFolder
    federation: Federation | None
    model: Model | None
    algorithm: Algorithm | None
    trust: bool = False

    def build_plan(self) -> Plan:
        """Build the plan; raise if the data are not those of the run."""
        path = self.folder.path
        start = get_start(list(self.folder.iterate_events()))
        try:
            table = tomllib.loads(self.folder.read_config_text())
        except ValueError as error:
            raise FolderError(f"{self.folder.config_file} is damaged: {error}") from None
        if "library" in table:
            return self.check_data(self.build_library_plan(table), start)
        config = self.read_config(table)
        if (path / BOARDS_RECORD).is_file():
            federation = self.federation or read_device_federation(config, path, start["clients"])
            return config.build_board_plan(federation)
        federation = self.federation or read_federation(config)
        return self.check_data(
            config.build_plan(federation, self.make_net_builder(config, federation)), start
        )

    def read_config(self, table: dict[str, Any]) -> Config:
        """Read the configuration; an algorithm that the user passes takes the place of its own."""
        if self.algorithm is None:
            return read_config(self.folder.config_file, trust=self.trust)
        name = find_choice(table, [], "algorithm.name", "fedavg")
        config = read_config(self.folder.config_file, ["algorithm.name=fedavg"])
        return replace(config, algorithm=self.algorithm, algorithm_name=name)

    def build_library_plan(self, table: dict[str, Any]) -> Plan:
        """Build the plan of a run that was begun from Python."""
        path, name = self.folder.path, table["model"]["name"]
        if self.federation is None:
            raise DataError(
                f"{path} was begun from Python, so its data are not in it; for its models pass"
                f" them: hp.load('{path}', federation=...)"
            )
        if self.model is None and name not in MODEL_DESCRIPTIONS:
            raise DataError(
                f"{path} was begun with a model of your own ('{name}'); for its models pass it:"
                f" hp.load('{path}', federation=..., model=...)"
            )
        sections = {k: v for k, v in table.items() if k not in ("data", "library")}
        if self.model is not None:
            chosen = self.model if isinstance(self.model, str) else None
            sections["model"] = {**table["model"], "name": chosen}
        if self.algorithm is not None:
            sections["algorithm"] = {}
        else:
            self.check_algorithm(table["algorithm"]["name"])
        config = resolve_config(sections, trust=self.trust)
        if self.algorithm is not None:
            config = replace(config, algorithm=self.algorithm)
        return config.build_plan(self.federation, self.make_net_builder(config, self.federation))

    def make_net_builder(self, config: Config, federation: Federation) -> Callable[[], Net] | None:
        """Return what builds a net of the user's own, None if the configuration names one."""
        if self.model is None or isinstance(self.model, str):
            return None
        return prepare_own_net(self.model, config.algorithm, federation, config.top.seed)

    def check_algorithm(self, name: str) -> None:
        """Refuse a name that stands for a class of the user's own."""
        try:
            get_algorithm_class(name, self.trust)
        except ConfigError as error:
            why = f" ({error})" if is_own_code(name) else ""
            raise DataError(
                f"{self.folder.path} was begun with an algorithm of your own ('{name}'); for its"
                f" models pass it: hp.load('{self.folder.path}', ..., algorithm=...){why}"
            ) from None

    def check_data(self, plan: Plan, start: StartEvent) -> Plan:
        """Refuse other data than those the run began with."""
        if start["data_sha256"] != plan.federation.sha256:
            raise DataError(
                f"the data are not those of the run in {self.folder.path} (data_sha256 differs);"
                " pass the federation that it began with"
            )
        return plan


def read_device_federation(config: Config, path: Path, clients: Sequence[str]) -> Federation:
    """Return the clients of a run on devices, without data of their own: those are elsewhere."""
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
    return Federation(OWN_DATA, x, nothing, scale, spec.labels, rows, rows).transformed(
        config.data.transform
    )
