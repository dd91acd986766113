"""Entries of a leaderboard: made from finished runs, and checked by repeating a seed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms import load_algorithm_file
from ..config.reading import read_config
from ..core.errors import ConfigError, FolderError
from ..core.files import write_atomically, write_json
from ..core.own_modules import forget_module
from ..engines.base import prepare_engine
from ..runs.store import RunFolder
from ..runs.summary import Summary
from .progress import RunsProgress
from .tasks import RunTask, read_federation, run_sequentially

RUN_FILES = ("config.toml", "result.json")


@dataclass(frozen=True)
class CheckedSeed:
    """A seed that was repeated: what the entry claims, and what came out."""

    entry: str
    seed: int
    claimed: str
    found: str

    @property
    def equal(self) -> bool:
        return self.claimed == self.found


def write_entry(
    folder: Path,
    config: str,
    seeds: Mapping[int, Mapping[str, Any]],
    code: Path | None = None,
    remark: str = "",
) -> None:
    """Write an entry: its configuration, what each seed gave, and its algorithm's file if it has one."""
    if folder.exists():
        raise FolderError(f"{folder} is there already; choose another --name, or remove it")
    folder.mkdir(parents=True)
    write_atomically(folder / "config.toml", config.encode())
    if code is not None:
        write_atomically(folder / "algorithm.py", code.read_bytes())
    content = {"seeds": {str(s): dict(result) for s, result in sorted(seeds.items())}}
    write_json(folder / "entry.json", {**content, **({"remark": remark} if remark else {})})


def check_seed(
    name: str,
    folder: Path,
    seed: int,
    claimed: str,
    progress: RunsProgress,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] = lambda text: None,
    code: Path | None = None,
) -> CheckedSeed:
    """Repeat one seed of an entry in a temporary folder; return the claimed and the found hash.

    ``code`` is the entry's own file, which the user trusts; without it, none of its code runs.
    """
    with tempfile.TemporaryDirectory(prefix="heterophony-") as temporary, loaded(code):
        config = read_config(folder / "config.toml", [*overrides, f"seed={seed}"])
        if config.engine.address is not None and not names_address(overrides):
            raise ConfigError(
                f"{folder / 'config.toml'} names a Ray cluster, which would receive your token; add"
                " -c engine.name=pool"
            )
        prepare_engine(config.engine)
        federation = read_federation(config)
        run = RunFolder(Path(temporary) / "run")
        run.create(config.fill_model_defaults(federation).to_toml())
        task = RunTask(run, config, config.build_plan(federation))
        summary: Summary = run_sequentially([task], progress, warn=warn)[0]
    return CheckedSeed(name, seed, claimed, summary.model_sha256)


def names_address(overrides: Sequence[str]) -> bool:
    keys = [pair.partition("=")[0].strip() for pair in overrides]
    return "engine.address" in keys or "engine.name" in keys


@contextmanager
def loaded(code: Path | None) -> Iterator[None]:
    """Load the file of an entry as the module that its configuration names, and forget it afterwards."""
    if code is None:
        yield
        return
    load_algorithm_file(code.stem, code)
    try:
        yield
    finally:
        forget_module(code.stem)
