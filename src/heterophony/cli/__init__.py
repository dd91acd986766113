"""The command line: parse, call, print. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..core.errors import HeterophonyError, StorageError
from . import (
    audit,
    broker,
    dashboard,
    data,
    devices,
    fleet,
    journal,
    leaderboard,
    lists,
    new,
    pretrain,
    reports,
    reproduce,
    runs,
    sweep,
    testbed,
    tools,
    tune,
)
from .examples import add_examples
from .terminal import print_error


class ErrorReportingGroup(TyperGroup):
    """Prints one line for every error that a user can mend, and exits with its code."""

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
            print_error(f"cannot write the result: {error.strerror}")
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), 1
            )  # else Python tries to write again at its exit
            raise SystemExit(StorageError.exit_code) from None


app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Personalised federated learning: one generic model, and for every client one of its own.",
)
runs.register(app)
sweep.register(app)
tune.register(app)
leaderboard.register(app)
new.register(app)
pretrain.register(app)
reproduce.register(app)
audit.register(app)
lists.register(app)
reports.register(app)
dashboard.register(app)
data.register(app)
broker.register(app)
devices.register(app)
journal.register(app)
testbed.register(app)
fleet.register(app)
tools.register(app)
add_examples(app)


def print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"heterophony {__version__}")
        raise typer.Exit


@app.callback()
def top(
    _: bool = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Personalised federated learning: one generic model, and for every client one of its own."""


def main() -> None:
    """Run the command line; this is the console script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # nothing can be lost before a run begins, and torch cannot be interrupted while it loads
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    app()
