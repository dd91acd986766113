"""Run what is left of a published table: side by side where runs are short, else one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.sections import EngineSection
from ..core.errors import DataError, DivergedError
from ..experiments.progress import RunsProgress
from ..experiments.tasks import (
    load_tasks,
    resume_tasks,
    run_on_cluster,
    run_side_by_side,
)
from ..runs.store import RunFolder
from .cost import estimate_seconds, measure_speed
from .reproduce import CellRun, TableSelection, create_run_folders, list_unfinished

SHORT_RUN_SECONDS = 60  # runs that are all shorter are run side by side, one core each


@dataclass(frozen=True)
class DueRun:
    """A run of a table that is not finished, and the seconds it is estimated to take."""

    cell_run: CellRun
    folder: RunFolder
    seconds: float
    label: str

    @property
    def rounds(self) -> int:
        rounds: int = self.cell_run.cell.config["rounds"]
        return rounds


def prepare_due_runs(table: TableSelection, parent: Path, cores: int) -> list[DueRun]:
    """Create the folders of all runs of a table, and list those that are not finished."""
    if not table.runs:
        reasons = dict.fromkeys(
            filter(None, (table.explain_unavailable(c) for c in table.distinct_cells))
        )
        raise DataError(f"reproduce {table.published.name}: {'; '.join(reasons)}")
    create_run_folders(table, parent)
    speed = measure_speed()
    return [
        DueRun(
            cell_run,
            RunFolder(parent / cell_run.folder_name),
            estimate_seconds(cell_run.cell.config, speed, cores),
            f"{cell_run.cell.row}, {table.describe_column(cell_run.cell)} (seed {cell_run.seed})",
        )
        for cell_run in list_unfinished(table, parent)
    ]


def run_due(
    due: Sequence[DueRun],
    engine: EngineSection,
    overrides: Sequence[str],
    cores: int,
    workers: int | None,
    progress: RunsProgress,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Run what is due; return by folder name which runs diverged, and how."""
    labelled = {d.folder.path: (d.label, d.rounds) for d in due}
    if len(due) > 1 and engine.name == "ray":
        failed = run_on_cluster(labelled, engine, workers, progress, overrides, warn)
    elif len(due) > 1 and max(d.seconds for d in due) < SHORT_RUN_SECONDS:
        failed = run_side_by_side(labelled, cores, progress, overrides, warn)
    else:
        failed = {}
        for run in due:
            try:
                tasks = load_tasks([run.folder], overrides)
                resume_tasks(tasks, progress, workers, warn=warn)
            except DivergedError as error:
                failed[run.folder.path] = str(error)
    return {path.name: reason for path, reason in failed.items()}
