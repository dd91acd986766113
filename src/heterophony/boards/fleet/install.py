"""Install heterophony on boards: build a wheel of this machine's code, and collect the wheels it needs."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, distribution
from importlib.metadata import version as find_version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidWheelFilename,
    NormalizedName,
    canonicalize_name,
    parse_wheel_filename,
)

from ... import __version__
from ...core.errors import ConfigError, HeterophonyError
from .hosts import Board
from .ssh import BoardError, Content, SshRunner, call_board, push_files
from .steps import BoardFacts

NAME = "heterophony"
DATE = (2020, 1, 1, 0, 0, 0)  # date of all files in the wheel, so that equal code gives equal bytes
SKIPPED_FOLDERS = ("__pycache__",)


def build_own_wheel() -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel of this package."""
    info = f"{NAME}-{__version__}.dist-info"
    contents = {
        **read_package_files(),
        f"{info}/METADATA": read_metadata().encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: heterophony\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nheterophony = heterophony.cli:main\n",
    }
    record = [f"{path},sha256={encode_digest(data)},{len(data)}" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return f"{NAME}-{__version__}-py3-none-any.whl", buffer.getvalue()


def read_package_files() -> dict[str, bytes]:
    """Read all files of the package heterophony, sorted by path, to build its wheel."""
    root = Path(__file__).parents[2]
    files = sorted(
        p for p in root.rglob("*") if p.is_file() and not set(SKIPPED_FOLDERS) & set(p.parts)
    )
    return {f"{NAME}/{p.relative_to(root).as_posix()}": p.read_bytes() for p in files}


def read_metadata() -> str:
    """Return heterophony's package metadata for its wheel, with the version of this code."""
    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        raise ConfigError(
            "heterophony is not installed here, so its requirements are unknown; install"
            " it with pip first"
        ) from None
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    head, _, _ = text.partition("\n\n")  # without the long description
    lines = [
        line
        for line in head.splitlines()
        if line.startswith(("Metadata-Version", "Name", "Requires", "Provides"))
    ]
    lines.insert(2, f"Version: {__version__}")
    return "\n".join(lines) + "\n"


def encode_digest(data: bytes) -> str:
    """Return the sha256 of a file in the encoding of a wheel's RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass(frozen=True)
class Target:
    """The facts that decide which wheels a board can install: architecture, Python and glibc."""

    machine: str
    python: tuple[int, int]
    glibc: tuple[int, int]

    @classmethod
    def from_facts(cls, facts: BoardFacts) -> Target:
        """Return the target of a board from the facts that it reports."""
        return cls(facts.machine, facts.python[:2], facts.glibc or (2, 17))

    @property
    def folder_name(self) -> str:
        """The name of the folder for wheels that boards like this can install."""
        return f"{self.machine}-cp{self.python[0]}{self.python[1]}"

    @property
    def platforms(self) -> list[str]:
        """The platform tags of wheels that the board can install, newest first."""
        newest = self.glibc[1] if self.glibc[0] == 2 else 40
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, 4, -1)]
        return [*tags, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]

    @property
    def tags(self) -> set[Tag]:
        """The tags of all wheels that the board can install."""
        interpreter = f"cp{self.python[0]}{self.python[1]}"
        return {
            *cpython_tags(self.python, platforms=self.platforms),
            *compatible_tags(self.python, interpreter, self.platforms),
        }

    @property
    def marker_environment(self) -> dict[str, str]:
        """The board's values for environment markers, to evaluate the markers of requirements."""
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
    """Raise BoardError if one of the wheels does not match the board's architecture, Python and glibc."""
    tags = target.tags
    for wheel in wheels:
        try:
            _, _, _, found = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            raise BoardError(f"{wheel} is not a wheel; delete it") from None
        if not found & tags:
            version = f"{target.python[0]}.{target.python[1]}"
            raise BoardError(
                f"{wheel.name} does not match it ({target.machine}, Python {version}, glibc"
                f" {target.glibc[0]}.{target.glibc[1]}); delete {wheel.parent} and run: fleet wheels"
            )


EXTRA = "mqtt"
# later aarch64 wheels on PyPI are built for CUDA servers, and bring gigabytes of NVIDIA's libraries
ARM_TORCH = ">=2.8,<2.11"
SKIPPED_PACKAGES = (NAME,)


def list_requirements(target: Target, torch: str = "") -> list[Requirement]:
    """Return the requirements to install on a board: heterophony's own, PyTorch and pip."""
    found = [r for r in list_own_requirements(target) if r.name != "torch"]
    if not torch and target.machine == "aarch64":
        chosen = ARM_TORCH
    else:
        chosen = f"=={torch or find_version('torch').split('+')[0]}"
    try:
        return [*found, Requirement(f"torch{chosen}"), Requirement("pip")]
    except (InvalidRequirement, InvalidSpecifier):
        raise ConfigError(f"torch = {torch!r}: must be a version, as in 2.8.0") from None


def list_own_requirements(target: Target) -> list[Requirement]:
    """Return the requirements of heterophony that apply to a board."""
    return select_requirements(read_metadata(), target, {EXTRA})


def select_requirements(metadata: str, target: Target, extras: set[str]) -> list[Requirement]:
    """Return the requirements in a package's metadata that apply to a board."""
    found = []
    for text in HeaderParser().parsestr(metadata).get_all("Requires-Dist", []):
        requirement = Requirement(text)
        environments = [{**target.marker_environment, "extra": e} for e in ("", *sorted(extras))]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            found.append(requirement)
    return found


def collect_wheels(folder: Path, target: Target, torch: str = "", index_url: str = "") -> int:
    """Download the missing wheels for boards of this kind; return how many were downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.whl"))
    needed: dict[NormalizedName, tuple[SpecifierSet, set[str]]] = {}
    queue, done = list_requirements(target, torch), set[str]()
    while queue:
        for requirement in queue:
            name = canonicalize_name(requirement.name)
            specifiers, extras = needed.get(name, (SpecifierSet(), set()))
            needed[name] = specifiers & requirement.specifier, extras | requirement.extras
        open_names = [n for n in needed if n not in done and n not in SKIPPED_PACKAGES]
        missing = [n for n in open_names if find_wheel(folder, n, needed[n][0]) is None]
        if missing:
            wanted = [f"{n}{needed[n][0]}" for n in missing]
            download_wheels(folder, wanted, target, index_url)
        queue = []
        for name in open_names:
            done.add(name)
            wheel = find_wheel(folder, name, needed[name][0])
            if wheel is None:
                raise HeterophonyError(f"pip downloaded no wheel of {name} to {folder}")
            queue += select_requirements(read_wheel_metadata(wheel), target, needed[name][1])
    return len(set(folder.glob("*.whl")) - before)


def find_wheel(folder: Path, name: str, specifiers: SpecifierSet) -> Path | None:
    """Return the newest wheel of a package that the specifiers allow; None if there is none."""
    found = []
    for path in folder.glob("*.whl"):
        wheel_name, version, _, _ = parse_wheel_filename(path.name)
        if wheel_name == name and specifiers.contains(version.public, prereleases=True):
            found.append((version, path))
    return max(found)[1] if found else None


def read_wheel_metadata(path: Path) -> str:
    """Read the package metadata in a wheel."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (
            n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1
        )
        return archive.read(name).decode()


def download_wheels(
    folder: Path, requirements: Iterable[str], target: Target, index_url: str
) -> None:
    """Download wheels for a board with pip; raise HeterophonyError with pip's error if that fails."""
    # -P: do not run a pip.py of the current folder
    words = [sys.executable, "-P", "-m", "pip", "download"]
    words += ["--no-deps", "--only-binary=:all:", "--quiet"]
    words += [
        "--python-version",
        f"{target.python[0]}.{target.python[1]}",
        "--implementation",
        "cp",
    ]
    words += [word for p in target.platforms for word in ("--platform", p)]
    words += ["--extra-index-url", index_url] if index_url else []
    done = subprocess.run(
        [*words, "--dest", str(folder), *requirements], capture_output=True, text=True
    )
    if done.returncode:
        lines = [s for s in done.stderr.splitlines() if s.startswith("ERROR: ")]
        why = (lines or done.stderr.splitlines() or ["pip printed nothing"])[-1]
        raise HeterophonyError(
            f"wheels for {target.folder_name}: {why.removeprefix('ERROR: ')}; pip needs the internet here,"
            " or a folder of wheels (PIP_FIND_LINKS)"
        )


INSTALL_SECONDS = 3600.0  # pip on an SD card is slow


@dataclass(frozen=True)
class Installer:
    """Installs this machine's code and the collected wheels on boards."""

    wheels: Path
    own_name: str
    own_wheel: bytes

    @classmethod
    def create(cls, wheels: Path) -> Installer:
        """Build a wheel of this machine's heterophony, to install with the wheels in a folder."""
        return cls(wheels, *build_own_wheel())

    def install(self, ssh: SshRunner, board: Board, facts: BoardFacts) -> str:
        """Install heterophony on a board, unless it is up to date; return what was done."""
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
        """Return a digest of an installation: all its files, and the name of the board's Python."""
        files = {path: content.digest() for path, content in sorted(contents.items())}
        return hashlib.sha256(json.dumps([files, board.python]).encode()).hexdigest()

    def list_wheels(self, target: Target, board: Board) -> dict[str, Content]:
        """Return the collected wheels for a board; raise BoardError if one is missing or does not match."""
        folder = self.wheels / target.folder_name
        wheels = sorted(folder.glob("*.whl"))
        check_wheels(wheels, target)
        for requirement in list_requirements(target, board.torch):
            name = canonicalize_name(requirement.name)
            if find_wheel(folder, name, requirement.specifier) is None:
                raise BoardError(f"{folder} has no wheel of {requirement.name}; run: fleet wheels")
        return {f"wheels/{wheel.name}": Content(wheel) for wheel in wheels}

    def check_environment(self, versions: dict[str, str], target: Target, board: Board) -> None:
        """Raise BoardError if the board's own environment lacks a package, or has it in an old version."""
        exact = [Requirement(f"torch=={board.torch}")] if board.torch else []
        for requirement in [*list_own_requirements(target), *exact]:
            version = versions.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version.split("+")[0]):
                found = "not there" if version is None else f"version {version}"
                raise BoardError(
                    f"the environment of {board.python} lacks {requirement.name}"
                    f"{requirement.specifier} ({found}); install it there, or set python to an"
                    " interpreter outside a virtual environment"
                )
