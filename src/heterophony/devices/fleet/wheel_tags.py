"""Which wheels fit a board: by the tags in their file names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from .checks import BoardFacts
from .ssh import BoardError


@dataclass(frozen=True)
class Target:
    """What decides which wheels fit: architecture, Python and glibc of a board."""

    machine: str
    python: tuple[int, int]
    glibc: tuple[int, int]

    @classmethod
    def from_facts(cls, facts: BoardFacts) -> Target:
        return cls(facts.machine, facts.python[:2], facts.glibc or (2, 17))

    @property
    def folder_name(self) -> str:
        """The name of the folder with the wheels of such boards."""
        return f"{self.machine}-cp{self.python[0]}{self.python[1]}"

    @property
    def platforms(self) -> list[str]:
        """The platform tags that fit, the newest first."""
        newest = self.glibc[1] if self.glibc[0] == 2 else 40
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, 4, -1)]
        return [*tags, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]

    @property
    def tags(self) -> set[Tag]:
        interpreter = f"cp{self.python[0]}{self.python[1]}"
        return {
            *cpython_tags(self.python, platforms=self.platforms),
            *compatible_tags(self.python, interpreter, self.platforms),
        }

    @property
    def marker_environment(self) -> dict[str, str]:
        """The values by which requirements of packages are chosen, as on the board."""
        version = f"{self.python[0]}.{self.python[1]}"
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
        }


def check_wheels(wheels: Iterable[Path], target: Target) -> None:
    """Raise one line if a wheel does not fit the board."""
    tags = target.tags
    for wheel in wheels:
        try:
            _, _, _, found = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            raise BoardError(f"{wheel} is not a wheel; delete it") from None
        if not found & tags:
            version = f"{target.python[0]}.{target.python[1]}"
            raise BoardError(
                f"{wheel.name} does not fit it ({target.machine}, Python {version}, glibc"
                f" {target.glibc[0]}.{target.glibc[1]}); delete {wheel.parent} and run: fleet wheels"
            )
