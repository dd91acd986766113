"""A leaderboard: a folder of entries, each a configuration with a result and a hash per seed.

An entry is a folder with ``config.toml``, ``entry.json`` and, if the algorithm is not built in, its file.
A leaderboard may pack entries without code in ``entries.zip``. The hash of a seed is the ``model_sha256``
of its run, so anyone can check it.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms import get_display_name, load_algorithm_file
from ..config.reading import read_config
from ..core.errors import ConfigError, DivergedError, FolderError, HeterophonyError, choose
from ..core.files import (
    encode_json,
    find_archive,
    is_file,
    read_json,
    read_text_file,
    unpack_archive,
    write_folder,
)
from ..core.own_modules import forget_module, is_own_code
from ..core.temporary import temporary_folder
from ..engines.base import prepare_engine
from ..results.comparison import extract_measures, get_measure_bounds
from ..results.runs import Curve, Run, group_by_series
from ..results.statistics import RankComparison, compare_ranks, compute_confidence_interval
from ..results.table import Cell, Column, Columns, ResultTable, Rows, Value
from ..runs.folder import RunFolder
from ..runs.summary import summarise
from ..studies.hooks import RunsProgress
from ..studies.many import RunOptions, run_many
from ..studies.spec import RunSpec

LARGEST_MEASURE = 1e15  # limit for bytes, seconds and shares in an entry
ENTRY_FILE, CONFIG_FILE, ALGORITHM_FILE = "entry.json", "config.toml", "algorithm.py"
PACKED_ENTRIES = "entries.zip"  # archive with entries of the leaderboard that contains it
ALGORITHM_MODULE = "algorithm"  # the module name of the algorithm file
DIGITS = 5  # decimals of clients' accuracies and of curves
MIN_SEEDS = 5  # number of seeds that a ranked entry needs
HASH_NOTE = (
    "a hash depends on the kind of processor and on library versions: constraints.txt lists those"
    " of the leaderboard"
)
MEASURES = (
    *("P.last10", "G.last10", "worst10", "std", "new_clients"),
    *("MB_up", "MB_down", "work", "seconds"),
)
BELOW_LOCAL, LOCAL = "below_local", "local"  # a measure and the algorithm it compares with


@dataclass(frozen=True)
class SeedResult:
    """The hashes and measures that an entry claims for one seed."""

    model_sha256: str
    data_sha256: str
    measures: Mapping[str, float]
    clients: Mapping[str, float]  # P of each client after the last round
    curves: Mapping[str, Curve]  # G and P over the rounds


@dataclass(frozen=True)
class Entry:
    """An entry of a leaderboard: one algorithm with its settings on one federation."""

    folder: Path
    config: Mapping[str, Any]
    seeds: Mapping[int, SeedResult]
    remark: str = ""

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name in the configuration."""
        return str(self.config["algorithm"]["name"])

    @property
    def algorithm(self) -> str:
        """The algorithm's display name."""
        return get_display_name(self.algorithm_name)

    @property
    def has_own_code(self) -> bool:
        """Whether the entry contains the file of its algorithm."""
        return is_own_code(self.algorithm_name)

    @property
    def setting(self) -> str:
        """The federation in words; entries with the same federation are compared."""
        data = self.config["data"]
        rule = dict(data.get("partition", {}))
        kind = rule.get("kind", "dirichlet")
        degree = next((f" {rule[key]}" for key in ("alpha", "per_client") if key in rule), "")
        net = self.config.get("model", {}).get("name")
        words = [data["name"], f"{kind}{degree}", f"{data['clients']} clients", net]
        return ", ".join(str(word) for word in words if word)

    def list_values(self, measure: str) -> list[float]:
        """List the entry's values of a measure over the seeds; empty if a seed does not have it."""
        values = [s.measures[measure] for s in self.seeds.values() if measure in s.measures]
        return values if len(values) == len(self.seeds) else []


def read_leaderboard(board: Path) -> list[Entry]:
    """Read all entries of a leaderboard, a folder or a .zip; raise FolderError if one is damaged."""
    with open_leaderboard(board) as entries:
        return entries


@contextmanager
def open_leaderboard(board: Path) -> Iterator[list[Entry]]:
    """Yield all entries of a leaderboard; the folders of packed entries exist only inside the block."""
    archive = find_archive(board, PACKED_ENTRIES)
    if archive is None:
        yield list_entries(board, [board])
        return
    with unpack_archive(archive) as folder:
        try:
            entries = list_entries(board, [folder, board])
        except FolderError as error:
            raise FolderError(str(error).replace(str(folder), str(archive))) from None
        for entry in entries:
            if entry.has_own_code and entry.folder.parent == folder:
                raise FolderError(
                    f"{archive}: {entry.folder.name} brings code of its own; unpack the archive and"
                    " read it first"
                )
        yield entries


def list_entries(board: Path, parents: Sequence[Path]) -> list[Entry]:
    """Read the entries of a leaderboard from these folders; for equal names, the later folder wins."""
    found = {
        path.parent.name: path.parent for p in parents for path in p.glob(f"[!.]*/{ENTRY_FILE}")
    }
    if not found:
        raise FolderError(f"{board} is not a leaderboard: none of its folders has an {ENTRY_FILE}")
    return [read_entry(folder) for _, folder in sorted(found.items())]


def read_entry(folder: Path) -> Entry:
    """Read one entry of a leaderboard; raise FolderError if it is damaged."""
    path = folder / ENTRY_FILE
    content = read_json(path)
    try:
        config = tomllib.loads(read_text_file(folder / CONFIG_FILE))
        seeds = {int(seed): parse_seed_result(result) for seed, result in content["seeds"].items()}
        entry = Entry(folder, config, seeds, str(content.get("remark", "")))
        complete = bool(seeds) and bool(entry.setting) and bool(entry.algorithm)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, FileNotFoundError):
        complete = False
    if not complete:
        raise FolderError(f"{path} is damaged: it is not the entry of a leaderboard")
    if entry.has_own_code and not is_file(folder / ALGORITHM_FILE):
        raise FolderError(f"{folder} has no {ALGORITHM_FILE}, which its configuration names")
    if entry.has_own_code and not entry.algorithm_name.startswith(f"{ALGORITHM_MODULE}:"):
        raise FolderError(
            f"{folder / CONFIG_FILE} names {entry.algorithm_name}; the code of an entry is its"
            f" {ALGORITHM_FILE}: write {ALGORITHM_MODULE}:{entry.algorithm}"
        )
    return entry


def parse_seed_result(result: Mapping[str, Any]) -> SeedResult:
    """Parse an entry's result for one seed; raise ValueError if it is invalid."""
    measures = {k: float(v) for k, v in result["measures"].items() if k in MEASURES}
    clients = {str(k): float(v) for k, v in result.get("clients", {}).items()}
    curves = {
        name: [(int(t), float(v)) for t, v in result.get("curves", {}).get(name, [])]
        for name in ("G", "P")
    }
    hashes = [result["model_sha256"], result["data_sha256"]]
    if not all(isinstance(h, str) and len(h) == 64 for h in hashes):
        raise ValueError("not a sha256")
    numbers = [*measures.values(), *clients.values(), *(v for c in curves.values() for _, v in c)]
    if not all(abs(v) < LARGEST_MEASURE for v in numbers):  # NaN is not below it either
        raise ValueError("not a measure")
    return SeedResult(
        hashes[0], hashes[1], measures, clients, {k: c for k, c in curves.items() if c}
    )


# The table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedEntry:
    """A ranked entry: means with 95 % intervals and average ranks within its setting."""

    entry: Entry
    means: Mapping[str, float]
    # symmetrical, because tables show half of them after ±
    intervals: Mapping[str, tuple[float, float] | None]
    ranks: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Return the ranked entry as plain data for JSON."""
        return {
            "name": self.entry.folder.name,
            "algorithm": self.entry.algorithm,
            "remark": self.entry.remark,
            "seeds": {str(s): r.model_sha256 for s, r in self.entry.seeds.items()},
            "means": dict(self.means),
            "intervals": {m: self.limit_interval(m) for m in self.intervals},
            "ranks": dict(self.ranks),
        }

    def limit_interval(self, measure: str) -> tuple[float, float] | None:
        """Return the interval of a measure, cut off at its smallest and largest possible value."""
        task = self.entry.config["data"].get("task")
        lowest, highest = get_measure_bounds(measure, self.entry.list_values(measure), task)
        found = self.intervals[measure]
        return found and (max(found[0], lowest), min(found[1], highest))


@dataclass(frozen=True)
class Ranking:
    """All entries of one setting, sorted by P, and their ranks over common seeds."""

    setting: str
    rows: list[RankedEntry]
    comparisons: Mapping[str, RankComparison | None]  # by measure, as in P.last10
    common_seeds: list[int]

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as plain data for JSON."""
        compared = {
            measure: c
            and {"p": c.p, "critical_difference": c.critical_difference, "seeds": c.blocks}
            for measure, c in self.comparisons.items()
        }
        return {
            "setting": self.setting,
            "common_seeds": self.common_seeds,
            "ranks": compared,
            "entries": [row.to_dict() for row in self.rows],
        }


def build_rankings(entries: Sequence[Entry]) -> list[Ranking]:
    """Build the rankings of a leaderboard, one for each setting."""
    settings = dict.fromkeys(entry.setting for entry in entries)
    return [build_ranking(s, [e for e in entries if e.setting == s]) for s in settings]


def build_ranking(setting: str, entries: Sequence[Entry]) -> Ranking:
    """Rank the entries of one setting, paired by seed and data."""
    common = [s for s in entries[0].seeds if all(has_same_data(e, entries[0], s) for e in entries)]
    comparisons = {m: rank_entries(entries, common, m) for m in ("P.last10", "G.last10")}
    local = next((e for e in entries if e.algorithm_name == LOCAL), None)
    rows = [
        build_ranked_entry(
            entry, {m: get_rank(comparisons[m], entries, entry, m) for m in comparisons}, local
        )
        for entry in entries
    ]
    rows.sort(key=lambda row: -row.means.get("P.last10", 0.0))
    return Ranking(setting, rows, comparisons, common)


def has_same_data(entry: Entry, other: Entry, seed: int) -> bool:
    """Return True if two entries used the same data with a seed."""
    mine, theirs = entry.seeds.get(seed), other.seeds.get(seed)
    return mine is not None and theirs is not None and mine.data_sha256 == theirs.data_sha256


def select_entries_with(entries: Sequence[Entry], measure: str) -> list[Entry]:
    """Select the entries that have a measure; algorithms without a generic model have no G."""
    return [e for e in entries if e.list_values(measure)]


def rank_entries(
    entries: Sequence[Entry], seeds: Sequence[int], measure: str
) -> RankComparison | None:
    """Compare the ranks of entries over seeds; None with fewer than two seeds or entries."""
    ranked = select_entries_with(entries, measure)
    if len(ranked) < 2 or len(seeds) < 2:
        return None
    return compare_ranks([[e.seeds[s].measures[measure] for e in ranked] for s in seeds])


def get_rank(
    comparison: RankComparison | None, entries: Sequence[Entry], entry: Entry, measure: str
) -> float | None:
    """Return an entry's average rank; None if it was not ranked."""
    ranked = select_entries_with(entries, measure)
    return comparison.average_ranks[ranked.index(entry)] if comparison and entry in ranked else None


def build_ranked_entry(
    entry: Entry, ranks: Mapping[str, float | None], local: Entry | None = None
) -> RankedEntry:
    """Build a ranked entry: its means and intervals over the seeds, and its ranks."""
    values = {m: v for m in MEASURES if (v := entry.list_values(m))}
    intervals = {m: compute_confidence_interval(v) for m, v in values.items()}
    if local is not None and entry is not local and (below := list_shares_below(entry, local)):
        values[BELOW_LOCAL] = below
    return RankedEntry(
        entry,
        {m: sum(v) / len(v) for m, v in values.items()},
        {m: (i.low, i.high) if i else None for m, i in intervals.items()},
        ranks,
    )


def list_shares_below(entry: Entry, other: Entry) -> list[float]:
    """List, for each seed, the share of clients whose P is lower than in another entry; empty if a share is unknown."""
    shares = []
    for seed, mine in entry.seeds.items():
        theirs = other.seeds.get(seed)
        if theirs is None or not mine.clients or mine.clients.keys() != theirs.clients.keys():
            return []
        below = sum(mine.clients[c] < theirs.clients[c] for c in mine.clients)
        shares.append(below / len(mine.clients))
    return shares


COLUMNS = {
    "P.last10": Column("P %", "P.last10", "percent", show="half"),
    "G.last10": Column("G %", "G.last10", "percent", show="half"),
    "worst10": Column("worst tenth %", "worst10", "percent", show="half"),
    "std": Column("deviation %", "std", "percent", drop=1),
    BELOW_LOCAL: Column("below Local %", BELOW_LOCAL, "percent", drop=1),
    "new_clients": Column("new clients %", "new_clients", "percent", show="half", drop=1),
    "MB_up": Column("MB up", "MB_up", form=".1f"),
    "MB_down": Column("MB down", "MB_down", form=".1f", drop=1),
    "work": Column("work ×", "work", form=".1f"),
    "seconds": Column("s", "seconds", form=".1f"),
}
RANKED = ("P.last10", "G.last10")
ALWAYS_SHOWN = (*RANKED, "worst10")


def build_ranking_table(ranking: Ranking) -> ResultTable:
    """Build the table of a leaderboard's setting; ranks that do not differ from the best are bold."""
    shown = [k for k in COLUMNS if k in ALWAYS_SHOWN or any(k in r.means for r in ranking.rows)]
    columns: Columns = ["algorithm"]
    for key in shown:
        columns += [COLUMNS[key], *([Column("rank", form=".1f")] if key in RANKED else [])]
    rows: Rows = []
    for row in ranking.rows:
        cells: list[Value] = [f"{row.entry.algorithm}{' *' if row.entry.remark else ''}"]
        for key in shown:
            cells.append(Cell(row.means.get(key), interval=row.intervals.get(key)))
            cells += [make_rank_cell(ranking, row, key)] if key in RANKED else []
        rows.append([*cells, len(row.entry.seeds)])
    columns.append(Column("seeds", form="d"))
    return ResultTable.build(columns, rows, ranking.setting, [describe_ranks(ranking)])


def make_rank_cell(ranking: Ranking, row: RankedEntry, measure: str) -> Cell:
    """Make the table cell of an entry's average rank, bold if it does not differ from the best."""
    rank, compared = row.ranks[measure], ranking.comparisons[measure]
    if rank is None or compared is None:
        return Cell()
    best = min(compared.average_ranks)
    near = rank - best < compared.critical_difference
    return Cell(rank, mark="bold" if near else "")


def describe_ranks(ranking: Ranking) -> str:
    """Describe how far apart ranks must be to differ, and over how many seeds they are computed."""
    comparison, seeds = ranking.comparisons["P.last10"], len(ranking.common_seeds)
    if comparison is None:
        return "± is half of the 95 % interval; ranks need two entries with two seeds in common"
    few = f"; a rank needs {MIN_SEEDS} seeds" if seeds < MIN_SEEDS else ""
    return (
        f"± is half of the 95 % interval over seeds; ranks over {seeds} common seeds: average ranks"
        f" of P differ if they are {comparison.critical_difference:.1f} apart (Nemenyi, 5 %); those"
        f" in bold are not significantly different from the best{few}"
    )


# Adding and checking ----------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedSeed:
    """A repeated seed of an entry: the hash that the entry claims, and the hash found here."""

    entry: str
    seed: int
    claimed: str
    found: str

    @property
    def equal(self) -> bool:
        """Whether the hashes are equal."""
        return self.claimed == self.found


def add_entries(
    board: Path, runs: Sequence[Run], code: Path | None = None, remark: str = ""
) -> dict[Path, int]:
    """Add finished runs to a leaderboard, one entry per series, all or none; return the number of seeds by folder."""
    for run in runs:
        if run.summary is None:
            raise FolderError(f"{run.folder} has not finished; resume it first")
        if not (run.folder / CONFIG_FILE).is_file():
            raise FolderError(f"{run.folder} is packed; unpack its runs.zip first")
        if not names_federation(run.config):
            raise FolderError(
                f"{run.folder / CONFIG_FILE} is damaged: it does not name an algorithm, data and clients"
            )
    added: dict[Path, int] = {}
    try:
        for group in group_by_series(runs).values():
            config, folder = format_entry_config(group[0], code), board / name_entry(group[0])
            seeds = {run.seed: describe_seed(run) for run in group}
            write_entry(folder, config, seeds, code, remark)
            added[folder] = len(group)
    except HeterophonyError:
        for folder in added:
            shutil.rmtree(folder)
        raise
    return added


def names_federation(config: Mapping[str, Any]) -> bool:
    """Return True if a run's configuration names an algorithm, data and clients, as an entry needs."""
    algorithm, data = config.get("algorithm"), config.get("data")
    if not isinstance(algorithm, dict) or not isinstance(data, dict):
        return False
    rule = data.get("partition", {})
    return "name" in algorithm and {"name", "clients"} <= set(data) and isinstance(rule, dict)


def name_entry(run: Run) -> str:
    """Return the folder name of a run's entry: data, heterogeneity and algorithm."""
    data = run.config["data"]
    rule = data.get("partition", {})
    words = [data["name"], rule.get("kind", ""), rule.get("alpha", ""), data["clients"], run.series]
    text = "-".join(str(word) for word in words if word != "").lower()
    return re.sub(r"[^\w.+-]+", "-", text).strip("-")


def format_entry_config(run: Run, code: Path | None) -> str:
    """Return the text of an entry's config.toml, which names the entry's file if the algorithm is not built in."""
    text = (run.folder / CONFIG_FILE).read_text(encoding="utf-8")
    name = str(run.config["algorithm"]["name"])
    if not is_own_code(name):
        return text
    if code is None:
        raise ConfigError(f"{name} is not built in: name its file with --code FILE.py")
    return text.replace(f'"{name}"', f'"{ALGORITHM_MODULE}:{name.rpartition(":")[2]}"')


def describe_seed(run: Run) -> dict[str, Any]:
    """Describe a run as the result of one seed in an entry: its hashes and measures."""
    assert run.summary is not None
    measures = extract_measures(run.summary)
    if run.summary.new_clients is not None:
        measures["new_clients"] = run.summary.new_clients.P
    curves = {name: run.curves[name] for name in ("G", "P") if run.curves.get(name)}
    return {
        "model_sha256": run.summary.model_sha256,
        "data_sha256": run.summary.data_sha256,
        "measures": {k: v for k, v in measures.items() if k in MEASURES},
        "clients": {c: round(r.accuracy, DIGITS) for c, r in run.summary.clients.items()},
        "curves": {k: [(t, round(v, DIGITS)) for t, v in curve] for k, curve in curves.items()},
    }


def write_entry(
    folder: Path,
    config: str,
    seeds: Mapping[int, Mapping[str, Any]],
    code: Path | None = None,
    remark: str = "",
) -> None:
    """Write an entry of a leaderboard: its configuration, the result of each seed and its algorithm's file, if any."""
    if folder.exists():
        raise FolderError(f"{folder} already exists; remove it to add the entry again")
    content: dict[str, Any] = {"seeds": {str(s): dict(r) for s, r in sorted(seeds.items())}}
    if remark:
        content["remark"] = remark
    files = {CONFIG_FILE: config.encode(), ENTRY_FILE: encode_json(content)}
    if code is not None:
        files[ALGORITHM_FILE] = code.read_bytes()
    write_folder(folder, files)


def choose_entries(
    every: Sequence[Entry], names: Sequence[str], seed: int | None, trust: bool, board: str
) -> list[tuple[Entry, int]]:
    """Choose the entries to check, by name or all, each with the seed to repeat (default: its first).

    Raise ConfigError for an unknown name or seed, or for an entry with its own code without ``trust``.
    """
    entries = {entry.folder.name: entry for entry in every}
    chosen = [choose(entries, name, board) for name in names or entries]
    for entry in chosen:
        if entry.has_own_code and not trust:
            raise ConfigError(
                f"{entry.folder} brings code of its own, {entry.folder / ALGORITHM_FILE}; read it,"
                " then add --trust"
            )
        if seed is not None and seed not in entry.seeds:
            known = ", ".join(map(str, entry.seeds))
            raise ConfigError(f"--seed {seed}: {entry.folder.name} has seeds {known}")
    return [(entry, min(entry.seeds) if seed is None else seed) for entry in chosen]


def check_seed(
    entry: Entry, seed: int, progress: RunsProgress, overrides: Sequence[str] = ()
) -> CheckedSeed:
    """Repeat one seed of an entry in a temporary folder; return the claimed and the found hash.

    This runs the code of an entry that has its own, for which ``choose_entries`` requires ``trust``.
    """
    code = entry.folder / ALGORITHM_FILE if entry.has_own_code else None
    path = entry.folder / CONFIG_FILE
    with temporary_folder() as temporary, load_entry_code(code):
        config = read_config(path, [*overrides, f"seed={seed}"])
        if config.engine.address is not None and not overrides_cluster(overrides):
            raise ConfigError(
                f"{path} names a Ray cluster, which would receive your token; add"
                " -c engine.name=pool"
            )
        prepare_engine(config.engine)
        spec, run = RunSpec(config).load_data(), RunFolder(temporary / "run")
        spec.open_folder(run)
        run.close()
        for reason in run_many({run: spec}, RunOptions(progress)).values():
            raise DivergedError(reason)
        summary = summarise(list(run.iterate_events()))
    claimed = entry.seeds[seed].model_sha256
    return CheckedSeed(entry.folder.name, seed, claimed, summary.model_sha256)


def build_check_table(found: Sequence[CheckedSeed]) -> ResultTable:
    """Build the table of checked entries, with the hashes of their repeated seeds."""
    rows = [
        [c.entry, str(c.seed), "equal" if c.equal else "differs", c.claimed[:12], c.found[:12]]
        for c in found
    ]
    columns = ["entry", "seed", "hash", "claimed", "found"]
    differs = None if all(c.equal for c in found) else HASH_NOTE
    return ResultTable.build(columns, rows, "entries, each with one seed repeated", [differs])


def overrides_cluster(overrides: Sequence[str]) -> bool:
    """Return True if ``-c`` settings choose the engine or the address of its cluster."""
    keys = [pair.partition("=")[0].strip() for pair in overrides]
    return "engine.address" in keys or "engine.name" in keys


@contextmanager
def load_entry_code(code: Path | None) -> Iterator[None]:
    """Import an entry's algorithm file as the module that its configuration names, inside the block."""
    if code is None:
        yield
        return
    load_algorithm_file(code.stem, code)
    try:
        yield
    finally:
        forget_module(code.stem)
