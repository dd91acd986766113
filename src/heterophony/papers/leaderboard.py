"""A leaderboard: a folder of entries, each a configuration with one result and hash per seed.

An entry is a folder with ``config.toml`` and ``entry.json``, and with the algorithm's file where it is
not built in. A board may have entries packed in ``entries.zip``, without code. The hash of a seed is
``model_sha256`` of its run, so anyone can check it.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms import get_display_name, is_own_code, load_algorithm_file
from ..config.reading import read_config
from ..core.errors import ConfigError, DivergedError, FolderError
from ..core.files import is_file, read_json, read_text_file, write_atomically, write_json
from ..core.own_modules import forget_module
from ..core.packed_folders import find_archive, unpack
from ..engines.base import prepare_engine
from ..results.statistics import RankComparison, compare_ranks, compute_confidence_interval
from ..runs.folder import RunFolder
from ..runs.summary import summarise
from ..studies.many import RunOptions, run_many
from ..studies.progress import RunsProgress
from ..studies.spec import RunSpec

ENTRY_FILE, CONFIG_FILE, ALGORITHM_FILE = "entry.json", "config.toml", "algorithm.py"
PACKED_ENTRIES = "entries.zip"  # holds entries of the board that it is in
ALGORITHM_MODULE = "algorithm"  # the module of that file
MIN_SEEDS = 5  # that an entry needs for its place on the board
MEASURES = ("P.last10", "G.last10", "worst10", "MB_up", "MB_down", "work", "seconds")


@dataclass(frozen=True)
class SeedResult:
    """What an entry claims for one seed."""

    model_sha256: str
    data_sha256: str
    measures: Mapping[str, float]


@dataclass(frozen=True)
class Entry:
    """One algorithm with its settings on one federation."""

    folder: Path
    config: Mapping[str, Any]
    seeds: Mapping[int, SeedResult]
    remark: str = ""

    @property
    def algorithm_name(self) -> str:
        """The algorithm as its configuration names it."""
        return str(self.config["algorithm"]["name"])

    @property
    def algorithm(self) -> str:
        """The name of the algorithm for people."""
        return get_display_name(self.algorithm_name)

    @property
    def brings_code(self) -> bool:
        """Tell whether the entry has an algorithm's file of its own."""
        return is_own_code(self.algorithm_name)

    @property
    def setting(self) -> str:
        """Describe the federation: entries with the same one are compared."""
        data = self.config["data"]
        rule = dict(data.get("partition", {}))
        kind = rule.get("kind", "dirichlet")
        alpha = f" {rule['alpha']}" if "alpha" in rule else ""
        return f"{data['name']}, {kind}{alpha}, {data['clients']} clients"

    def list_values(self, measure: str) -> list[float]:
        """List a measure over the seeds; empty if a seed does not have it."""
        values = [s.measures[measure] for s in self.seeds.values() if measure in s.measures]
        return values if len(values) == len(self.seeds) else []


def read_board(board: Path) -> list[Entry]:
    """Read all entries of a board, a folder or a .zip; raise if one of them is damaged."""
    with open_board(board) as entries:
        return entries


@contextmanager
def open_board(board: Path) -> Iterator[list[Entry]]:
    """Give all entries of a board; the folders of packed ones are there as long as it is open."""
    archive = find_archive(board, PACKED_ENTRIES)
    if archive is None:
        yield list_entries(board, [board])
        return
    with unpack(archive) as folder:
        try:
            entries = list_entries(board, [folder, board])
        except FolderError as error:
            raise FolderError(str(error).replace(str(folder), str(archive))) from None
        for entry in entries:
            if entry.brings_code and entry.folder.parent == folder:
                raise FolderError(
                    f"{archive}: {entry.folder.name} brings code of its own; unpack the archive and"
                    " read it first"
                )
        yield entries


def list_entries(board: Path, parents: Sequence[Path]) -> list[Entry]:
    """Read the entries in these folders, by name; one that is in two is read from the later."""
    found = {path.parent.name: path.parent for p in parents for path in p.glob(f"*/{ENTRY_FILE}")}
    if not found:
        raise FolderError(f"{board} is not a leaderboard: no folder in it has an {ENTRY_FILE}")
    return [read_entry(folder) for _, folder in sorted(found.items())]


def read_entry(folder: Path) -> Entry:
    """Read one entry."""
    path = folder / ENTRY_FILE
    content = read_json(path)
    try:
        config = tomllib.loads(read_text_file(folder / CONFIG_FILE))
        seeds = {int(seed): read_seed(result) for seed, result in content["seeds"].items()}
        entry = Entry(folder, config, seeds, str(content.get("remark", "")))
        complete = bool(seeds) and bool(entry.setting) and bool(entry.algorithm)
    except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError):
        complete = False
    if not complete:
        raise FolderError(f"{path} is damaged: it is not the entry of a leaderboard")
    if entry.brings_code and not is_file(folder / ALGORITHM_FILE):
        raise FolderError(f"{folder} has no {ALGORITHM_FILE}, which its configuration names")
    if entry.brings_code and not entry.algorithm_name.startswith(f"{ALGORITHM_MODULE}:"):
        raise FolderError(
            f"{folder / CONFIG_FILE} names {entry.algorithm_name}; the code of an entry is its"
            f" {ALGORITHM_FILE}: write {ALGORITHM_MODULE}:{entry.algorithm}"
        )
    return entry


def read_seed(result: Mapping[str, Any]) -> SeedResult:
    measures = {k: float(v) for k, v in result["measures"].items() if k in MEASURES}
    hashes = [result["model_sha256"], result["data_sha256"]]
    if not all(isinstance(h, str) and len(h) == 64 for h in hashes):
        raise ValueError("not a sha256")
    return SeedResult(hashes[0], hashes[1], measures)


# The table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoardRow:
    """An entry's place: means with 95 % intervals, and average ranks within its setting."""

    entry: Entry
    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float] | None]
    ranks: Mapping[str, float | None]


@dataclass(frozen=True)
class BoardTable:
    """All entries of one setting, by P; and the ranks over the seeds that all of them have."""

    setting: str
    rows: list[BoardRow]
    comparisons: Mapping[str, RankComparison | None]  # by measure
    common_seeds: list[int]


def build_board(entries: Sequence[Entry]) -> list[BoardTable]:
    """Build a table for each setting."""
    settings = dict.fromkeys(entry.setting for entry in entries)
    return [build_table(s, [e for e in entries if e.setting == s]) for s in settings]


def build_table(setting: str, entries: Sequence[Entry]) -> BoardTable:
    """Compare the entries of one setting, paired by seed and data."""
    common = [s for s in entries[0].seeds if all(has_same_data(e, entries[0], s) for e in entries)]
    comparisons = {m: rank_entries(entries, common, m) for m in ("P.last10", "G.last10")}
    rows = [
        build_row(entry, {m: get_rank(comparisons[m], entries, entry, m) for m in comparisons})
        for entry in entries
    ]
    rows.sort(key=lambda row: -row.means.get("P.last10", 0.0))
    return BoardTable(setting, rows, comparisons, common)


def has_same_data(entry: Entry, other: Entry, seed: int) -> bool:
    mine, theirs = entry.seeds.get(seed), other.seeds.get(seed)
    return mine is not None and theirs is not None and mine.data_sha256 == theirs.data_sha256


def select_ranked(entries: Sequence[Entry], measure: str) -> list[Entry]:
    """Select the entries that have a measure: some algorithms have no generic model."""
    return [e for e in entries if e.list_values(measure)]


def rank_entries(
    entries: Sequence[Entry], seeds: Sequence[int], measure: str
) -> RankComparison | None:
    """Compare ranks over seeds; None with fewer than two seeds or entries."""
    ranked = select_ranked(entries, measure)
    if len(ranked) < 2 or len(seeds) < 2:
        return None
    return compare_ranks([[e.seeds[s].measures[measure] for e in ranked] for s in seeds])


def get_rank(
    comparison: RankComparison | None, entries: Sequence[Entry], entry: Entry, measure: str
) -> float | None:
    ranked = select_ranked(entries, measure)
    return comparison.average_ranks[ranked.index(entry)] if comparison and entry in ranked else None


def build_row(entry: Entry, ranks: Mapping[str, float | None]) -> BoardRow:
    values = {m: v for m in MEASURES if (v := entry.list_values(m))}
    intervals = {m: compute_confidence_interval(v) for m, v in values.items()}
    return BoardRow(
        entry,
        {m: sum(v) / len(v) for m, v in values.items()},
        {m: (i.low, i.high) if i else None for m, i in intervals.items()},
        ranks,
    )


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
        spec, run = RunSpec(config).load_data(), RunFolder(Path(temporary) / "run")
        spec.open_folder(run)
        run.close()
        for reason in run_many({run: spec}, RunOptions(progress, warn=warn)).values():
            raise DivergedError(reason)
        summary = summarise(list(run.iterate_events()))
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
