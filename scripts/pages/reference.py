"""Reference pages generated from the code: commands, configuration keys, exit codes, Python."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

import heterophony
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.cli import EXAMPLES, app
from heterophony.config.sections import SECTIONS, ParticipationSkew, TopSection
from heterophony.core import errors
from heterophony.core.settings import (
    describe_settings,
    describe_type,
    list_admitted_types,
    list_settings,
)
from heterophony.population.attacks import Faults
from heterophony.population.participation import Uniform

GROUPS = {  # the parts of the Python page, by the package that defines a name
    "studies": "Runs",
    "runs": "Results",
    "report": "Figures",
    "tools": "Tools",
    "data": "Data and partitions",
    "population": "Participation and faults",
    "engines": "Engines",
    "core": "Algorithms and models of your own",
}


def write_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a Markdown table; a bar within a cell is escaped."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [titles, ["---"] * len(titles), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# Commands ---------------------------------------------------------------------------------------


def write_commands_page() -> str:
    """Write a section for every command: usage, arguments, options, examples."""
    head = (
        "# Commands\n\nEvery command has `--help`. Results go to stdout, progress and errors to"
        " stderr; the [exit code](exit-codes.md) tells success from each kind of error. `heterophony"
        " --install-completion` installs completion of commands, options and algorithms for bash,"
        " zsh, fish and PowerShell.\n"
    )
    return head + "".join(write_command(name, call) for name, call in walk(app))


def walk(group: typer.Typer, above: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every command: its words, and the function it calls."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{above}{command.name or command.callback.__name__}", command.callback
    for below in group.registered_groups:
        if below.typer_instance is not None:
            yield from walk(below.typer_instance, f"{above}{below.name} ")


def write_command(name: str, call: Callable[..., Any]) -> str:
    parameters = list_parameters(call)
    arguments = [words for is_option, words, *_ in parameters if not is_option]
    usage = " ".join(["heterophony", name, *arguments, *(["[OPTIONS]"] if parameters else [])])
    about = " ".join(inspect.cleandoc(call.__doc__ or "").split())
    lines = [f"\n## {name}\n\n{about}\n\n```text\n{usage}\n```\n"]
    rows: list[tuple[str, ...]] = [
        (f"`{words}`", default, about) for _, words, default, about in parameters
    ]
    titles = ["argument or option", "default", "meaning"]
    if not any(default for _, default, _ in rows):
        titles, rows = [titles[0], titles[2]], [(words, about) for words, _, about in rows]
    if rows:
        lines.append(write_table(titles, rows))
    if name in EXAMPLES:
        lines.append("```sh\n" + "\n".join(EXAMPLES[name]) + "\n```\n")
    return "\n".join(lines)


def list_parameters(call: Callable[..., Any]) -> list[tuple[bool, str, str, str]]:
    """List a command's arguments, then its options: syntax, default and meaning."""
    hints = get_type_hints(call, include_extras=True)
    found = []
    for name, parameter in inspect.signature(call).parameters.items():
        kind, *extras = (
            get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        )
        info = extras[0] if extras else typer.Argument()
        is_option = isinstance(info, typer.models.OptionInfo)
        words = info.metavar or (name if not is_option else "")
        if is_option:
            first = [info.default] if str(info.default).startswith("-") else []  # in Annotated
            flags = [*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"]
            words = ", ".join(flags) + ("" if kind is bool else f" {words or describe_kind(kind)}")
        default = parameter.default
        shown = default.value if isinstance(default, Enum) else default
        plain = shown is not None and not isinstance(shown, bool) and shown is not parameter.empty
        found.append((is_option, words, f"`{shown}`" if plain else "", info.help or ""))
    return sorted(found, key=lambda row: row[0])


def describe_kind(kind: Any) -> str:
    """Describe the values of an option: its choices, or a word for its type."""
    kinds = [k for k in get_args(kind) or (kind,) if k is not NoneType]
    kind = (get_args(kinds[0]) or kinds)[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    return {str: "TEXT", int: "N", float: "NUMBER", Path: "PATH"}.get(kind, "VALUE")


# Configuration keys -----------------------------------------------------------------------------


def write_keys_page() -> str:
    """Write every key of a configuration with its default, range and meaning."""
    head = (
        "# Configuration keys\n\nEvery key, from the code. [Configuration](configuration.md)"
        " explains them, with a whole file as an example; the settings of an algorithm are on"
        " [its page](algorithms.md).\n"
    )
    sections: dict[str, list[type]] = {"": [TopSection]}
    for name, cls in SECTIONS.items():
        sections[name] = [cls]
    sections["participation"] = [Uniform, Faults]
    sections["participation.skew"] = [ParticipationSkew]
    parts = [head]
    for section, classes in sections.items():
        rows = [row for cls in classes for row in list_key_rows(section, cls)]
        title = f"[{section}]" if section else "Outside all sections"
        parts.append(
            f"\n## {title}\n\n" + write_table(["key", "default", "allowed", "meaning"], rows)
        )
    return "".join(parts)


def list_key_rows(section: str, cls: type) -> list[tuple[str, str, str, str]]:
    """List the keys of a section: name, default, allowed values, and meaning."""
    hints, described = get_type_hints(cls), {s["name"]: s for s in describe_settings(cls)}
    rows = []
    for field in list_settings(cls):
        found, kinds = described[field.name], list_admitted_types(hints[field.name])
        is_number = bool({int, float} & set(kinds)) and not {str, list} & set(kinds)
        is_choice = " | " in found["allowed"]
        allowed = found["allowed"] if is_number or is_choice else describe_type(hints[field.name])
        default = found["default"]
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        about = found["about"] or "see [Configuration](configuration.md#partitions)"
        key = f"`{section}.{field.name}`" if section else f"`{field.name}`"
        rows.append(
            (
                key,
                write_default(default),
                allowed.removeprefix("must be ").replace("tuple", "a list"),
                about,
            )
        )
    return rows


def write_default(value: Any) -> str:
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# Exit codes -------------------------------------------------------------------------------------


def write_exit_codes_page() -> str:
    """Write the errors by their exit codes."""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    own = [c for c in classes if issubclass(c, errors.HeterophonyError)]
    rows = [
        (c.exit_code, f"`{c.__name__}`", (c.__doc__ or "").splitlines()[0])
        for c in sorted(own, key=lambda c: (c.exit_code, c.__name__))
    ]
    fixed = [
        (0, "", "Success; `dashboard` also exits with 0 after a signal."),
        (2, "", "Wrong usage: an option or a command that does not exist."),
        (130, "", "Stopped by Ctrl-C, in commands that have nothing to resume."),
        (143, "", "Stopped by `kill`, in commands that have nothing to resume."),
    ]
    return (
        "# Exit codes\n\nA command exits with one of these codes. In Python, the errors are classes"
        " below `hp.HeterophonyError`; their message is one line: what is wrong, where, and what"
        " to do.\n\n" + write_table(["code", "error", "meaning"], sorted([*rows, *fixed]))
    )


# Python -----------------------------------------------------------------------------------------


def write_python_page() -> str:
    """Write every public name with its signature and documentation."""
    head = (
        "# Python API\n\n`import heterophony as hp`. [The Python library](../how-to/library.md)"
        " shows how the names are used together. Every [algorithm](algorithms.md) is a class of"
        " `hp`, too.\n"
    )
    algorithms = set(ALGORITHM_CLASSES.values())
    names: dict[str, list[tuple[str, Any]]] = {title: [] for title in GROUPS.values()}
    for name, module in heterophony.PUBLIC.items():
        if name in algorithms:
            continue
        value = getattr(import_module(f"heterophony.{module}"), name)
        title = GROUPS.get(module.split(".")[0], module.split(".")[0].capitalize())
        names.setdefault(title, []).append((name, value))
    parts = [
        f"\n## {title}\n" + "".join(write_name(n, v) for n, v in sorted(found, key=lambda f: f[0].lower()))
        for title, found in names.items() if found
    ]  # fmt: skip
    return head + "".join(parts)


def write_name(name: str, value: Any) -> str:
    text = f"\n### hp.{name}\n\n```python\n{write_signature(f'hp.{name}', value)}\n```\n\n{read_doc(value)}\n"
    if not inspect.isclass(value):
        return text
    if dataclasses.is_dataclass(value):
        described = [s for s in describe_settings(value) if s["about"]]
        rows = [(f"`{s['name']}`", write_default(s["default"]), s["about"]) for s in described]
        text += "\n" + write_table(["setting", "default", "meaning"], rows) if rows else ""
    return text + "".join(write_member(k, v) for k, v in list_members(value)) + "\n"


def list_members(cls: type) -> list[tuple[str, Any]]:
    """List the public methods and properties that a class documents itself."""
    return [
        (k, v) for k, v in vars(cls).items()
        if not k.startswith("_") and (inspect.isfunction(v) or isinstance(v, property)) and v.__doc__
    ]  # fmt: skip


def write_member(name: str, value: Any) -> str:
    shown = f".{name}" if isinstance(value, property) else write_signature(f".{name}", value)
    about = read_doc(value).split("\n\n")[0].replace("\n", " ")
    return f"\n- `{shown}`: {about}"


def write_signature(name: str, value: Any) -> str:
    """Write a signature; one that is long has a line for each parameter."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    kept = [clean_parameter(p) for k, p in signature.parameters.items() if k not in ("self", "cls")]
    short = f"{name}({', '.join(kept)})"
    return (
        short
        if len(short) <= 90 or name.startswith(".")
        else f"{name}(\n    " + ",\n    ".join(kept) + ",\n)"
    )


def clean_parameter(parameter: inspect.Parameter) -> str:
    """Write a parameter as in a stub: no quotes around its type, no address, no factory."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    hint = parameter.annotation
    text = f"{star}{parameter.name}"
    if hint is not parameter.empty:
        text += f": {hint if isinstance(hint, str) else getattr(hint, '__name__', hint)}"
    if parameter.default is not parameter.empty:
        default = re.sub(r"<.*>", "…", repr(parameter.default))
        text += f" = {default}" if hint is not parameter.empty else f"={default}"
    return text


def read_doc(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return re.sub(r"\bdocs/([\w-]+/[\w-]+)\.md", r"[\1](../\1.md)", text)
