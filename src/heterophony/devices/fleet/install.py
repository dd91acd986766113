"""Install heterophony on boards without the internet; a second time it changes nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .agent import call_board
from .checks import BoardFacts
from .hosts import Board
from .own_wheel import build_own_wheel
from .ssh import BoardError, SshRunner
from .transfer import Content, push_files
from .wheel_tags import Target, check_wheels
from .wheels import find_wheel, list_own_requirements, list_requirements

INSTALL_SECONDS = 3600.0  # pip on an SD card is slow


@dataclass(frozen=True)
class Installer:
    """Installs the code that runs here, and the collected wheels."""

    wheels: Path
    own_name: str
    own_wheel: bytes

    @classmethod
    def create(cls, wheels: Path) -> Installer:
        return cls(wheels, *build_own_wheel())

    def install(self, ssh: SshRunner, board: Board, facts: BoardFacts) -> str:
        """Bring the board to the state of this machine; say what was done."""
        state = call_board(ssh, board, "environment")
        target = Target.from_facts(facts)
        contents = {f"wheels/{self.own_name}": Content(self.own_wheel)}
        if not facts.in_environment:
            contents |= self.list_wheels(target, board)
        digest = self.digest(contents, board)
        if state["marker"] == digest:
            return "unchanged"
        if facts.in_environment:
            versions = call_board(ssh, board, "versions")["versions"]
            self.check_environment(versions, target, board)
        push_files(ssh, board, contents, only=["wheels"])
        requirements = [f"{r.name}{r.specifier}" for r in list_requirements(target, board.torch)]
        request = {
            "own_wheel": self.own_name,
            "requirements": [r for r in requirements if not r.startswith("pip")],
            "digest": digest,
        }
        answer = call_board(ssh, board, "install", request, seconds=INSTALL_SECONDS)
        return f"installed heterophony {answer['version']}"

    def digest(self, contents: dict[str, Content], board: Board) -> str:
        """Return what the board's state is compared by: all files, and the interpreter's name."""
        files = {path: content.digest() for path, content in sorted(contents.items())}
        return hashlib.sha256(json.dumps([files, board.python]).encode()).hexdigest()

    def list_wheels(self, target: Target, board: Board) -> dict[str, Content]:
        """Return the collected wheels for such a board; refuse those that do not fit it."""
        folder = self.wheels / target.folder_name
        wheels = sorted(folder.glob("*.whl"))
        check_wheels(wheels, target)
        for requirement in list_requirements(target, board.torch):
            name = canonicalize_name(requirement.name)
            if find_wheel(folder, name, requirement.specifier) is None:
                raise BoardError(f"{folder} has no wheel of {requirement.name}; run: fleet wheels")
        return {f"wheels/{wheel.name}": Content(wheel) for wheel in wheels}

    def check_environment(self, versions: dict[str, str], target: Target, board: Board) -> None:
        """Refuse an environment of the board that lacks a package, or has a version too old."""
        exact = [Requirement(f"torch=={board.torch}")] if board.torch else []
        for requirement in [*list_own_requirements(target), *exact]:
            version = versions.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version.split("+")[0]):
                found = "not there" if version is None else f"version {version}"
                raise BoardError(
                    f"the environment of {board.python} lacks {requirement.name}"
                    f"{requirement.specifier} ({found}); install it there, or set python to one that"
                    " is in no environment"
                )
