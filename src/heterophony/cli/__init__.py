"""The command line: the app with its commands and their examples, and the printing of errors."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..core.errors import HeterophonyError, StorageError
from . import boards, data, fleet, lists, reports, reproduce, runs, search, slurm
from .completion import join_words_of_bash
from .terminal import print_error

OBJECTS_TO_COLLECTION = 20_000  # Python's 700 collects hundreds of times while torch loads

EXAMPLES: dict[str, tuple[str, ...]] = {  # command lines; a comment may follow after a #
    "run": (
        "heterophony run                          # FedAvg on the embedded digits",
        "heterophony run fedreg -c rounds=60 -c participation.rate=0.25 --out runs/mine",
        "heterophony run fedprox -c data=fmnist -c clients=50 -c mu=0.1    # short keys are enough",
        "heterophony run study.toml -c seed=1     # a file of settings, one of them changed",
    ),
    "resume": (
        "heterophony resume runs/mine             # after Ctrl-C, kill -9 or a power cut",
        "heterophony resume runs/mine --workers 8 # on other cores: the same bits",
    ),
    "compare": (
        "heterophony compare fedavg fedper fedreg --seeds 0-2 --out runs/three",
        "heterophony compare fedavg my_algorithm:Mine -c data=fmnist    # a class of your own",
    ),
    "sweep": (
        "heterophony sweep fedprox -s lr=0.01,0.05,0.1 -s mu=0,0.1 --seeds 0-2",
        "heterophony sweep fedprox -s lr=0.001..0.1 --random 20 --by G",
    ),
    "report": (
        "heterophony report runs/three            # one HTML page, runs/three/report.html",
        "heterophony report runs/three -o curves.pdf",
        "heterophony report runs/three -o table.tex --columns G.last10,P.last10",
        "heterophony report runs/three -o ranks.svg --kind ranks",
    ),
    "list": (
        "heterophony list algorithms",
        "heterophony list models --tensors convnet --algorithm fedrod",
        "heterophony list runs --json",
    ),
    "reproduce": (
        "heterophony reproduce                    # list the published tables, with their cost",
        "heterophony reproduce fedreg-table2-sota --rows 'Fed*'",
    ),
    "slurm": (
        "heterophony slurm compare fedavg fedper --seeds 0-4 --out runs/two --partition cpu --time 4:00:00",
        "heterophony slurm sweep fedprox -s mu=0,0.1 --out runs/mu --nodes 4    # then: sbatch runs/mu/slurm.sh",
    ),
    "audit": (
        "heterophony audit                        # five algorithms, patches of two photographs",
        "heterophony audit fedavg fedbn --rounds 5,10 --clients 4 --images 2",
    ),
    "testbed": (
        "heterophony testbed fedreg --boards 4 -c rounds=3",
        "heterophony testbed --faults all         # a fault after every round; the same bits",
    ),
    "dashboard": (
        "heterophony dashboard                    # all runs below runs/, live",
        "heterophony dashboard runs/three --port 9000",
    ),
    "new": ("heterophony new my-study              # then: cd my-study, python make_data.py",),
    "data partition": (
        "heterophony data partition -c clients=20 # a table: who holds what",
        "heterophony data partition -c clients=20 -o partition.png",
        "heterophony data partition -c data=fmnist --save who.json",
    ),
    "data export": (
        "heterophony data export --to pfllib dataset/Digits -c clients=20",
        "heterophony data export --to leaf leaf-data study.toml",
    ),
}


def add_examples(app: typer.Typer, above: str = "") -> None:
    """Append the examples of each command to its help page."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        command.epilog = format_epilog(EXAMPLES.get(f"{above}{name}", ())) or command.epilog
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{above}{group.name} ")


def format_epilog(lines: tuple[str, ...]) -> str:
    """Format the examples of a command as lines of its help page."""
    shown = (line.replace("[", r"\[") for line in lines)
    return "\n\n".join(["Examples:", *shown]) if lines else ""


class ErrorReportingGroup(TyperGroup):
    """Group of commands that prints a user's error as one line and exits with the error's code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeterophonyError as error:
            print_error(str(error))
            raise SystemExit(error.exit_code) from None
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        except BrokenPipeError:  # `heterophony … | head`
            sys.stderr.close()
            raise SystemExit(0) from None
        except OSError as error:  # stdout on a full disk; errors of files are HeterophonyErrors
            print_error(f"cannot write the result: {error.strerror or error}")
            # otherwise Python tries to write again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(StorageError.exit_code) from None


app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Personalised federated learning: one generic model, and a personal model for every client.",
)
for module in (runs, search, reproduce, slurm, lists, reports, data, boards, fleet):
    module.register(app)
add_examples(app)


def print_version(asked: bool) -> None:
    """Print the version and exit, if asked."""
    if asked:
        typer.echo(f"heterophony {__version__}")
        raise typer.Exit


@app.callback()
def top(
    _: bool = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Personalised federated learning: one generic model, and a personal model for every client."""


def main() -> None:
    """Run the command line; this is the console script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # nothing can be lost before a run starts, and torch cannot be interrupted while it loads
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(OBJECTS_TO_COLLECTION)
    try:
        with join_words_of_bash():
            app()
    finally:
        gc.freeze()  # otherwise Python searches all of torch's objects for garbage when it exits
