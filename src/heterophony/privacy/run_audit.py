"""Run a privacy audit on small data or as published, and read audits as evidence for claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..algorithms import find_algorithm_name, get_algorithm_class, get_display_name
from ..config.config import Config
from ..config.keys import expand_overrides, ignore_note
from ..config.reading import apply_override, resolve_config
from ..core.errors import ConfigError, FolderError
from ..core.files import read_json
from ..engines.base import EngineSpec, create_engine, prepare_engine
from ..papers import evidence
from ..papers.claim_list import ATTACK_MEASURES
from ..papers.reproduce import find_differences
from ..papers.scaling import shrink_to_medium
from ..papers.table import TableScale, load_table, load_tables
from ..protection import get_kind
from ..protection.base import Protection
from ..results.runs import Run, load_runs
from ..runs.folder import RunFolder
from ..studies.compare import create_comparison, label_algorithms
from ..studies.hooks import RunsProgress
from ..studies.run import execute_plan
from ..studies.spec import RunSpec, load_data_of_specs, read_federation
from . import audit
from .attack_job import AttackCase, AttackSettings
from .summary import PRIVATE_KNOWLEDGE, AuditPreset

LEAKAGE_TABLE = "feddecomp-table7"
# candidate rounds, and the losses at which algorithms are compared
MEDIUM_VICTIMS = audit.Victims(tuple(range(1, 17)), 5, 2, (0.5, 0.4))


@dataclass(frozen=True)
class AuditSetup:
    """The runs to train, the clients to attack, and the settings of the attacks."""

    settings: dict[str, Any]
    algorithms: tuple[str, ...]
    victims: audit.Victims
    attack_settings: AttackSettings


QUICK_AUDIT = AuditSetup(
    {
        "data": {"name": "photos", "clients": 4, "partition": {"kind": "dirichlet", "alpha": 0.5}},
        "model": {"name": "smallcnn", "head_depth": 1},
        "training": {"epochs": 3, "batch": 20, "lr": 0.02},
        "participation": {"rate": 1.0},
    },
    ("fedavg", "fedper", "fedrod", "fedreg", "feddecomp"),
    audit.Victims((5, 10), 3, 2),
    AttackSettings(),
)


def get_audit_preset(name: AuditPreset) -> AuditSetup:
    """Return the setup of the audit preset with this name."""
    if name == "quick":
        return QUICK_AUDIT
    table = load_table(LEAKAGE_TABLE)
    rows = [row["algorithm"]["name"] for row in table.rows.values()]
    settings = {**table.settings, "seed": table.measured.seeds[0]}
    if name == "medium":
        small = shrink_to_medium({**settings, "algorithm": table.cells[0].config["algorithm"]})
        settings = {k: v for k, v in small.items() if k != "algorithm"}
        return AuditSetup(settings, tuple(rows), MEDIUM_VICTIMS, AttackSettings(iterations=500))
    victims = audit.Victims((10, 20, 30, 40, 50), table.settings["data"]["clients"], 5)
    return AuditSetup(settings, tuple(rows), victims, AttackSettings(iterations=4800))


def get_algorithm_settings(name: AuditPreset, algorithm: str) -> dict[str, Any]:
    """Return an algorithm's settings in the published leakage table; none for the preset "quick"."""
    rows = () if name == "quick" else load_table(LEAKAGE_TABLE).rows.values()
    return next((dict(r["algorithm"]) for r in rows if r["algorithm"]["name"] == algorithm), {})


@dataclass(frozen=True)
class Audit:
    """A privacy audit: its runs by algorithm, and the log of its attacks."""

    configs: Mapping[str, Config]
    snapshots: Mapping[str, audit.Snapshots]
    log: audit.AttackLog
    victims: audit.Victims
    attack_settings: AttackSettings

    @property
    def folders(self) -> list[RunFolder]:
        """The run folders of the audit, in the order of its algorithms."""
        return [s.folder for s in self.snapshots.values()]

    def train(self, progress: RunsProgress) -> None:
        """Finish every run of the audit, save the states to attack, and record which parameters are sent."""
        for name, snapshots in self.snapshots.items():
            engine, plan = self.configs[name].engine, snapshots.plan
            status = progress.begin_run(get_display_name(name), plan.rounds)
            with lock_folder(snapshots.folder) as folder:
                execute_plan(plan, folder, engine, [status, snapshots.make_listener()])
                snapshots.save_last()
                audit.record_sent_parameters(name, snapshots, self.log)
                if self.victims.losses:
                    audit.record_losses(name, snapshots, min(self.victims.losses), self.log)

    def list_open_cases(self) -> dict[str, list[AttackCase]]:
        """List the unfinished attacks, by algorithm."""
        cases = {
            name: audit.list_attack_cases(
                name, snapshots, self.victims, self.attack_settings, self.log
            )
            for name, snapshots in self.snapshots.items()
        }
        left = {name: audit.list_open_cases(own, self.log) for name, own in cases.items()}
        return {name: own for name, own in left.items() if own}

    def attack(
        self, cases: Mapping[str, Sequence[AttackCase]], on_attack: Callable[[], None]
    ) -> None:
        """Run these attacks, and record each as soon as it is done."""
        engine = next(iter(self.configs.values())).engine
        spec = EngineSpec(engine.name, engine.workers, engine)
        for name, own in cases.items():
            snapshots = self.snapshots[name]
            plan, store = snapshots.plan, snapshots.client_store
            with (
                lock_folder(snapshots.folder),
                create_engine(spec, plan, store) as workers,
            ):
                for records in audit.invert_gradients(
                    list(own), snapshots, self.attack_settings, workers
                ):
                    self.log.append_records(records)
                    on_attack()


def build_audit_configs(
    preset: AuditPreset,
    settings: Mapping[str, Any],
    names: Sequence[str],
    overrides: Sequence[str],
    rounds: int,
    note: Callable[[str], None] = ignore_note,
) -> dict[str, Config]:
    """Build the configuration of every algorithm in an audit: the preset's settings, then the overrides.

    Algorithms of other packages are imported, because the caller names them.
    """
    configs = {}
    names = [find_algorithm_name(name) for name in names]
    overrides = expand_overrides(settings, overrides, names, note, trust=True)
    for name in names:
        if get_algorithm_class(name, trust=True).pooled:
            raise ConfigError(
                f"{name}: this algorithm pools all data, so nothing is sent; leave it out"
            )
        algorithm = {**get_algorithm_settings(preset, name), "name": name}
        raw = {**deepcopy(dict(settings)), "algorithm": algorithm, "rounds": rounds}
        for pair in overrides:
            if apply_override(raw, pair) in ("rounds", "algorithm.name"):
                raise ConfigError(f"-c {pair}: name algorithms and --rounds in the command itself")
        configs[name] = resolve_config(raw, trust=True)
    return configs


def open_audit(
    configs: Mapping[str, Config], victims: audit.Victims, how: AttackSettings, parent: Path
) -> Audit:
    """Create the run folders of an audit, or reopen those of an audit with the same settings."""
    first = next(iter(configs.values()))
    prepare_engine(first.engine)
    federation = read_federation(first)
    if len(federation.shape) != 3:
        raise ConfigError(f"data.name: an audit needs images, not examples of {federation.shape}")
    check_single_replies(first)
    if victims.clients > len(federation.clients):
        raise ConfigError(
            f"--clients {victims.clients}: there are only {len(federation.clients)} clients"
        )
    labels = label_algorithms(list(configs))
    specs = load_data_of_specs({labels[n]: RunSpec(c) for n, c in configs.items()})
    folders = create_comparison(parent, specs)
    asked = {
        "algorithms": list(configs),
        "victims": victims.describe(),
        "how": asdict(how),
        "attackers": list(PRIVATE_KNOWLEDGE),
        "seed": first.top.seed,
        "data": federation.name,
        "shape": list(federation.shape),
        "data_sha256": federation.sha256,
    }
    log, clients = audit.AttackLog(parent, asked), federation.clients[: victims.clients]
    snapshots = {
        name: audit.Snapshots(config.build_plan(federation), folder, victims.rounds, clients)
        for (name, config), folder in zip(configs.items(), folders, strict=True)
    }
    return Audit(configs, snapshots, log, victims, how)


def check_single_replies(config: Config) -> None:
    """Raise ConfigError for a protection that makes attacks on the gradients of single replies impossible."""
    for protection in config.protections:
        if type(protection).choose_client is not Protection.choose_client:
            raise ConfigError(
                f"protection.{get_kind(protection)}: the audit attacks the gradient of chosen images, and"
                " this one changes every step of training; leave it out"
            )
        if protection.encodes and protection.merge_kind == "sum":
            raise ConfigError(
                f"protection.{get_kind(protection)}: the server sees no single reply, so there is nothing"
                " to attack; leave it out"
            )


@contextmanager
def lock_folder(folder: RunFolder) -> Iterator[RunFolder]:
    """Lock the folder of an audited run inside the ``with`` block."""
    folder.lock()
    try:
        yield folder
    finally:
        folder.close()


# As evidence --------------------------------------------------------------------------------------


AUDIT_FILE = "audit.json"
RUNS_FOLDER = Path("runs")  # where `reproduce` and `audit` put runs by default
DIGITS = 3  # decimals of stored numbers, in dB


def read_own_runs(folder: Path | None, note: Callable[[str], None]) -> list[evidence.StoredRun]:
    """Read the user's own runs and audits of published tables, in a folder or below ``runs/``.

    ``note`` receives a message for each folder that is left out.
    """
    judged = (TableScale.medium, TableScale.full)
    folders = [folder] if folder else [p for s in judged for p in RUNS_FOLDER.glob(f"*-{s}")]
    audits: list[evidence.StoredRun] = []
    for candidate in [folder] if folder else sorted(RUNS_FOLDER.glob("*")):
        if is_audit(candidate):
            try:
                audits += describe_audit(candidate)
            except FolderError as error:
                note(f"left out: {error}")
    if not folders:
        return audits
    # all tables: a claim may rest on another table's FedAvg, or on centralised training
    cells = evidence.list_cells_at_scales(load_tables())
    return [*evidence.match_runs_to_cells(load_runs(folders, note), cells), *audits]


def is_audit(folder: Path) -> bool:
    """Return True if a folder holds a finished privacy audit."""
    return (folder / AUDIT_FILE).is_file()


def describe_audit(folder: Path) -> Iterator[evidence.StoredRun]:
    """Yield the results of an audit with the preset "medium", by row of the published table and attacker."""
    content = read_json(folder / AUDIT_FILE)
    check_attacks_match_preset(folder, content["asked"])
    runs = {run.config["algorithm"]["name"]: run for run in load_runs([folder])}
    table = load_table(LEAKAGE_TABLE)
    for at in (at for cell in table.cells for at in evidence.shrink_cell(table, cell)):
        name = at.cell.config["algorithm"]["name"]
        if name not in runs:
            raise FolderError(f"{folder}: the run of {name} is missing")
        check_run_settings(at, runs[name])
        for knowledge in PRIVATE_KNOWLEDGE:
            if row := find_audit_row(folder, content, name, knowledge):
                yield make_stored_run(at, runs[name], row)


def find_audit_row(
    folder: Path, content: dict[str, Any], name: str, knowledge: str
) -> dict[str, Any] | None:
    """Return the audit's row for an algorithm and an attacker; None if there is none.

    Raise FolderError if a loss level is missing in the row.
    """
    levels = {f"{v:g}" for v in content["asked"]["victims"]["losses"]}
    rows: list[dict[str, Any]] = content["rows"]
    for row in rows:
        if (row["algorithm"], row["private"]) == (name, knowledge):
            if set(row.get("losses", ())) == levels:
                return row
            raise FolderError(f"{folder}: {name} was not attacked at all requested losses")
    return None


def check_attacks_match_preset(folder: Path, asked: dict[str, Any]) -> None:
    """Raise FolderError if an audit's attacks are not those of the preset "medium"."""
    preset = get_audit_preset("medium")
    wanted = {
        "algorithms": list(preset.algorithms),
        "victims": preset.victims.describe(),
        "how": asdict(preset.attack_settings),
        "data": preset.settings["data"]["name"],
        "attackers": PRIVATE_KNOWLEDGE,
    }
    for key, value in wanted.items():
        found = asked.get(key)
        if to_lists(value) != to_lists(found):
            raise FolderError(f"{folder}: {key} is not as in --preset medium: {found}")


def to_lists(value: Any) -> Any:
    """Convert the tuples in an audit's settings to lists, as in JSON."""
    if isinstance(value, dict):
        return {k: to_lists(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def check_run_settings(at: evidence.CellAtScale, run: Run) -> None:
    """Raise FolderError if an audited run's settings differ from the table cell's, except for rounds."""
    wanted = {k: v for k, v in at.cell.config.items() if k != "rounds"}
    for key, value, found in find_differences(wanted, run.config):
        raise FolderError(f"{run.folder}: {key} is {found}; --preset medium has {value}")


def digest_audit(config: dict[str, Any]) -> str:
    """Return a digest of a cell's settings and of the attacks of the preset "medium"."""
    preset = get_audit_preset("medium")
    attacks = {"victims": preset.victims.describe(), "how": asdict(preset.attack_settings)}
    return evidence.digest_settings({**config, **attacks})


def make_stored_run(at: evidence.CellAtScale, run: Run, row: dict[str, Any]) -> evidence.StoredRun:
    """Return the audit's numbers for one algorithm and one attacker, as evidence for claims."""
    if run.summary is None:
        raise FolderError(f"{run.folder} is not finished")
    return replace(
        at.store_run(run),
        variant=f"personal-parameters-{row['private']}",
        evaluated=[],
        curves={},
        settings_sha256=digest_audit(at.cell.config),
        numbers={measure: round(row[measure], DIGITS) for measure in ATTACK_MEASURES},
    )
