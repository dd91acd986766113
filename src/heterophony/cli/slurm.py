"""The command ``slurm``: write scripts for ``sbatch`` that run a comparison, sweep, tune or table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..core.errors import ConfigError, match_name
from ..core.files import write_atomically
from . import terminal
from .options import find_named_code

if TYPE_CHECKING:
    from ..runs.folder import RunFolder

StudyCommand = Literal["compare", "sweep", "tune", "reproduce"]  # commands for several runs
ARRAY_FILE, RAY_FILE = "slurm.sh", "slurm-ray.sh"
LARGEST_ARRAY = 1000  # most tasks that sbatch accepts unless the cluster allows more

HEAD = """\
#!/bin/bash
#SBATCH --job-name=heterophony
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
"""

# Bash runs a trap only between commands, so heterophony runs in the background. After SIGTERM, which
# follows a cancellation too, Slurm itself decides whether the job is requeued.
TAIL = """\
run=$! again=
trap 'again=1; signalled=1; kill -USR1 "$run"' USR1
trap 'signalled=1; kill -TERM "$run"' TERM
while
    signalled=
    wait "$run"
    code=$?
    [ -n "$signalled" ]
do :; done
if [ -n "$again" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$job"
fi
exit "$code"
"""

START_RAY = """\
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')
export RAY_AUTH_TOKEN
address=$(hostname):$((20000 + SLURM_JOB_ID % 10000))
export address
srun --overlap --ntasks-per-node=1 bash -c '
    if [ "$SLURM_NODEID" -eq 0 ]; then
        exec ray start --head --port="${address##*:}" --num-cpus="$SLURM_CPUS_ON_NODE" \\
            --include-dashboard=false --block
    fi
    until ray start --address="$address" --num-cpus="$SLURM_CPUS_ON_NODE" --block; do
        sleep 2
    done
' &
until [ "$(ray status --address="$address" 2>&1 | grep -c " node_")" -ge "$SLURM_JOB_NUM_NODES" ]; do
    sleep 2
done
"""


def register(app: typer.Typer) -> None:
    """Add the command ``slurm`` to the app."""
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=passed_on)(slurm)


def slurm(
    ctx: typer.Context,
    command: Annotated[
        StudyCommand,
        typer.Argument(help="The command to run, followed by its own arguments and options."),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the runs and of the scripts.")],
    partition: Annotated[str | None, typer.Option(help="Passed to sbatch.")] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Time limit of one job, as for sbatch; longer runs are requeued."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes of the Ray cluster.")] = 2,
) -> None:
    """Write scripts for sbatch: an array of one run per task, and a Ray cluster for all runs."""
    assert ctx.parent is not None
    check_partition(partition)
    words = [*ctx.args, "--out", str(out)]
    folders, settings = prepare_runs(ctx.parent, command, words)
    limits = {"partition": partition, "time": time}
    if command == "tune":  # each trial depends on the results of earlier ones
        lines = [join([command, *words])]
    else:
        trust = ["--trust"] * any(map(names_own_code, folders))
        pairs = [word for pair in settings for word in ("-c", pair)]
        lines = [join(["resume", str(folder.path), *trust, *pairs]) for folder in folders]
    array, ray = out / ARRAY_FILE, out / RAY_FILE
    write_script(array, format_array_script(out, limits, lines))
    write_script(
        ray, format_ray_script(out, {**limits, "nodes": str(nodes)}, join([command, *words]))
    )
    shown = quote(str(array)), quote(str(ray))
    terminal.print_note(f"{len(lines)} task{'s' * (len(lines) > 1)}: sbatch {shown[0]}")
    if limit := explain_array_limit(len(lines)):
        terminal.print_note(limit)
    terminal.print_note(f"or all runs on one Ray cluster of {nodes} nodes: sbatch {shown[1]}")
    terminal.print_note(f"afterwards, show the table with: heterophony {join([command, *words])}")


def check_partition(name: str | None) -> None:
    """Raise ConfigError if ``--partition``, which is Slurm's, names a partition of data."""
    from ..data.partitions import PARTITIONS

    if name is not None and (kind := match_name(PARTITIONS, name)):
        raise ConfigError(
            f"--partition is Slurm's; for the data write -c data.partition.kind={kind}"
        )


def explain_array_limit(tasks: int) -> str | None:
    """Explain that sbatch may refuse an array of this many tasks; None if it is small enough."""
    if tasks <= LARGEST_ARRAY:
        return None
    return (
        f"sbatch refuses {tasks} tasks if that is more than the cluster's MaxArraySize (`scontrol show"
        f" config`; usually 1001); then use {RAY_FILE}, or several folders with fewer runs"
    )


def prepare_runs(
    parent: Any, name: StudyCommand, words: Sequence[str]
) -> tuple[Sequence[RunFolder], list[str]]:
    """Have a command write its run folders without running them; return them and the engine's settings."""
    inner = parent.command.get_command(parent, name)
    context = inner.make_context(name, list(words), parent=parent)
    pairs: list[str] = [p.strip() for p in context.params.get("pairs") or []]
    engine = [p for p in pairs if p.startswith("engine.") and not p.startswith("engine.precision")]
    before = terminal.PREPARE_ONLY.set(True)
    try:
        with context:
            inner.invoke(context)
    except terminal.RunsPreparedError as prepared:
        if prepared.folders or name == "tune":
            return prepared.folders, engine
    finally:
        terminal.PREPARE_ONLY.reset(before)
    raise ConfigError(f"slurm {name}: nothing is left to run")


def names_own_code(folder: RunFolder) -> bool:
    """Return True if the run in a folder uses an external algorithm or model."""
    from ..core.own_modules import is_own_code

    return any(map(is_own_code, find_named_code(folder.config_file, []).values()))


def format_array_script(out: Path, limits: dict[str, str | None], lines: Sequence[str]) -> str:
    """Return the sbatch script of a job array with one command line per task."""
    options = {**limits, "array": f"0-{len(lines) - 1}"}
    tasks = "".join(f"    {i}) set -- {line} ;;\n" for i, line in enumerate(lines))
    limit = explain_array_limit(len(lines))
    comment = f"# {limit}\n" if limit else ""
    return (
        f"{format_script_head(out, '%A_%a', options)}"
        f"{comment}"
        f'case "$SLURM_ARRAY_TASK_ID" in\n{tasks}esac\n'
        "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n"
        'python -m heterophony "$@" &\n'
        f"{TAIL}"
    )


def format_ray_script(out: Path, limits: dict[str, str | None], line: str) -> str:
    """Return the sbatch script that starts Ray on all nodes of a job and runs a command there."""
    return (
        f"{format_script_head(out, '%j', {**limits, 'ntasks-per-node': '1'})}"
        "job=$SLURM_JOB_ID\n"
        f"{START_RAY}"
        f'python -m heterophony {line} -c engine.name=ray -c "engine.address=$address" &\n'
        f"{TAIL}"
    )


def format_script_head(out: Path, number: str, options: dict[str, str | None]) -> str:
    """Return the head of an sbatch script: its options, the path to Python and the working folder."""
    folder = str(out.absolute()).replace("%", "%%")  # sbatch replaces %A and the like
    log = f"{folder}/slurm-{number}.log"
    given = {**{k: v for k, v in options.items() if v is not None}, "output": log}
    lines = "".join(f"#SBATCH --{key}={quote(value)}\n" for key, value in given.items())
    programs = quote(str(Path(sys.executable).parent))
    return f'{HEAD}{lines}PATH={programs}:"$PATH"\ncd {quote(str(Path.cwd()))} || exit 1\n'


def write_script(path: Path, text: str) -> None:
    """Write an sbatch script and make it executable."""
    write_atomically(path, text.encode(), durable=False)
    path.chmod(0o755)
