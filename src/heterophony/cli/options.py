"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..core.errors import ConfigError, OptionError, match_name, suggest_or_list
from . import terminal
from .completion import complete_run_argument, complete_setting
from .habits import translate_habits

if TYPE_CHECKING:
    from ..config.config import Config


class SettingsCommand(TyperCommand):
    """A command with ``-c`` that also accepts settings as options and as bare words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with suppress(OptionError) if ctx.resilient_parsing else nullcontext():  # when completing
            args = self.parse_words(ctx, args)
        return super().parse_args(ctx, args)

    def parse_words(self, ctx: Any, words: list[str]) -> list[str]:
        """Rewrite the words of the command line in the form that the parser expects."""
        takes_value = {
            name: not getattr(p, "is_flag", False)
            for p in self.get_params(ctx)
            if p.param_type_name == "option"
            for name in (*p.opts, *p.secondary_opts)
        }
        return translate_habits(words, takes_value)


SEEDS_PATTERN = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*,?")

ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG.toml|ALGO",
        help="A settings file or an algorithm's name; all other settings have their defaults.",
        autocompletion=complete_run_argument,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--config",
        help="One setting, as in training.lr=0.01; repeatable.",
        autocompletion=complete_setting,
    ),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "-c", "--config", help="A setting of the engine, as in engine.name=ray; repeatable."
    ),
]
OutOption = Annotated[
    Path | None, typer.Option(help="The folder to write; default: a new one in runs/.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(help="Also write to tensorboard, mlflow or wandb; repeatable."),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the module of an algorithm that is not built in, and print its name.",
    ),
]
SAME_COMMAND = "run the same command again to continue"  # shown after an interruption


SeedsOption = Annotated[
    str | None,
    typer.Option(
        help="Seeds, as in 0 1 2, or 0,1,2, or 0-4. Default: the seed of the configuration."
    ),
]


class SeedsCommand(SettingsCommand):
    """A command whose option --seeds takes several words, as in ``--seeds 0 1 2``."""

    def parse_words(self, ctx: Any, words: list[str]) -> list[str]:
        return join_seed_words(super().parse_words(ctx, words))


def join_seed_words(words: Sequence[str]) -> list[str]:
    """Join the numbers and ranges after ``--seeds`` into one argument."""
    out: list[str] = []
    for word in words:
        after_seeds = len(out) > 1 and out[-2] == "--seeds"
        if after_seeds and all(SEEDS_PATTERN.fullmatch(w) for w in (out[-1], word)):
            out[-1] += f",{word}"
        else:
            out.append(word)
    return out


def parse_seeds(text: str) -> list[int]:
    """Parse the value of ``--seeds``: ``0,1,2``, ``0 1 2`` or ``0-4``; a repeated seed counts once."""
    seeds: list[int] = []
    for part in re.split(r"[,\s]+", text.strip().strip(",")):
        ends = re.fullmatch(r"(-?\d+)(?:-(\d+))?", part)
        if ends is None:
            raise ConfigError(f"--seeds {text}: must be whole numbers, as in 0,1,2 or 0-4")
        first = int(ends[1])
        last = first if ends[2] is None else int(ends[2])
        if last < first:
            raise ConfigError(f"--seeds {text}: {part} is an empty range; write {last}-{first}")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def read_settings(word: str | None, pairs: list[str] | None, usual: Sequence[str] = ()) -> Config:
    """Read the configuration of a command; ``usual`` holds its default settings if there is no file."""
    from ..config.reading import read_config

    file, chosen = locate_settings(word, pairs or [])
    usual = usual if file is None else ()
    check_foreign_file(file, pairs or [])
    return read_config(file, [*usual, *chosen, *(pairs or [])], terminal.print_note, trust=True)


# a word that ends in one of these is a file, even if it does not exist
FILE_SUFFIXES = (".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".txt")


def locate_settings(word: str | None, pairs: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the settings file that a command's argument names, or else ``algorithm.name`` as a setting."""
    if word is None:
        return None, []
    if Path(word).is_file() or word.lower().endswith(FILE_SUFFIXES) or "/" in word:
        return Path(word), []
    from ..algorithms import ALGORITHM_CLASSES, find_algorithm_name
    from ..core.own_modules import is_own_code, suggest_module_and_class

    if not is_own_code(word) and match_name(ALGORITHM_CLASSES, word) is None:
        hint = suggest_module_and_class(word, "Class")
        near = f"; {hint}" if hint else suggest_or_list(word, ALGORITHM_CLASSES)
        raise ConfigError(f"{word}: neither a file nor an algorithm{near}")
    for pair in pairs:
        if pair.partition("=")[0].strip() in ("algorithm", "algorithm.name"):
            raise ConfigError(f"{word} and -c {pair}: name the algorithm once")
    return None, [f'algorithm.name="{find_algorithm_name(word)}"']


def start_fork_server_early(word: str | None, pairs: Sequence[str]) -> None:
    """Start the fork server before this process imports torch, so that both import it in parallel.

    Do nothing if the settings may name an engine other than the pool.
    """
    file, _ = locate_settings(word, pairs)
    words = " ".join(pairs)
    with suppress(OSError):
        words += "" if file is None else file.read_text(errors="replace")
    if not re.search("serial|ray", words):
        from ..engines.child_processes import start_fork_server

        start_fork_server()


CODE_KEYS = ("algorithm.name", "model.name")  # keys that can name a module of the user


def find_named_code(file: Path | None, pairs: Sequence[str]) -> dict[str, str]:
    """Return the algorithm and model that a command names, by key, without importing them."""
    from ..config.keys import expand_section, find_choice
    from ..config.reading import read_toml

    named, raw = [expand_section(pair) for pair in pairs], read_toml(file)[1]
    found = {key: find_choice(raw, named, key, "") for key in CODE_KEYS}
    return {key: name for key, name in found.items() if name}


def check_foreign_file(
    file: Path | None, pairs: Sequence[str], keys: Sequence[str] = CODE_KEYS
) -> None:
    """Raise ConfigError if a settings file from another folder names a module of the current folder.

    A downloaded file could otherwise import any module here. Modules that the command itself names
    are allowed.
    """
    from ..core.own_modules import find_module_file, is_installed, is_own_code

    if file is None or is_of_current_folder(file):
        return
    named_here = find_named_code(None, pairs)
    for key, name in find_named_code(file, []).items():
        module = name.partition(":")[0]
        if key in named_here or key not in keys or not is_own_code(name) or is_installed(module):
            continue
        if (found := find_module_file(module)) is not None:
            raise ConfigError(
                f"{file}: {key}: {name} would import {found}, but the file is in another folder; if"
                f" you trust it, add -c {quote(f'{key}={name}')}"
            )


def is_of_current_folder(file: Path) -> bool:
    """Return True if a settings file is in or below the current folder, outside run folders."""
    try:
        inside = file.resolve().is_relative_to(Path.cwd().resolve())
    except OSError:  # the folder was deleted
        return False
    return inside and not (file.parent / "events.jsonl").exists()


def check_only_engine_settings(pairs: list[str] | None) -> None:
    """Raise ConfigError for ``-c`` settings other than the engine's, which would change an existing run."""
    for pair in pairs or []:
        if not pair.strip().startswith("engine."):
            raise ConfigError(f"-c {pair}: only engine settings can change, as in engine.name=ray")
        if pair.partition("=")[0].strip() == "engine.precision":
            raise ConfigError(f"-c {pair}: a run keeps its precision; start a new run")


def format_resume_hint(folder: Path, code: Iterable[str]) -> str:
    """Return a hint with the command that resumes the runs in a folder; external modules need --trust."""
    from ..core.own_modules import is_own_code

    trust = " --trust" if any(map(is_own_code, code)) else ""
    return f"continue with `heterophony resume {folder}{trust}`"


def format_same_command(parent: Path) -> str:
    """Return a hint to repeat the command, with --out if the folder was chosen automatically."""
    return SAME_COMMAND if parent.parent != Path("runs") else f"{SAME_COMMAND} with --out {parent}"


def find_free_folder(name: str) -> Path:
    """Find the first unused runs/NAME-1, runs/NAME-2, …"""
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"
