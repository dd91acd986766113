"""The command line: what people type. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import HeterophonyError
from . import checks, runs, shows
from .screen import problem


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does."""


class Commands(TyperGroup):
    """One clear line and the right exit code for everything that has an answer."""

    def invoke(self, ctx: Any) -> Any:
        signal.signal(signal.SIGTERM, terminated)
        try:
            return super().invoke(ctx)
        except HeterophonyError as error:
            problem(str(error))
            raise SystemExit(error.exit_code) from None
        except Terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        except BrokenPipeError:  # `heterophony … | head`
            sys.stderr.close()
            raise SystemExit(0) from None


def terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Personalised federated learning: one common model, and for every client one of its own.",
)
runs.register(app)
shows.register(app)
checks.register(app)


def version(asked: bool) -> None:
    if asked:
        typer.echo(f"heterophony {__version__}")
        raise typer.Exit


@app.callback()
def top(
    _: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Say it."),
) -> None:
    """Personalised federated learning: one common model, and for every client one of its own."""


def main() -> None:
    """The console script."""
    app()
