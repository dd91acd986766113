"""Collect the wheels that boards need, for their architecture, with the pip of this machine.

pip evaluates the conditions of requirements (``platform_machine == "x86_64"``) for the machine it
runs on, also when it downloads for another. So it downloads without requirements, and those of each
wheel are read here, for the board.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from importlib.metadata import version as find_version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

from ...core.errors import ConfigError, HeterophonyError
from .own_wheel import NAME, read_metadata
from .wheel_tags import Target

EXTRA = "mqtt"
# later aarch64 wheels on PyPI are built for CUDA servers, and bring gigabytes of NVIDIA's libraries
ARM_TORCH = ">=2.8,<2.11"
SKIPPED = (NAME,)


def list_requirements(target: Target, torch: str = "") -> list[Requirement]:
    """Return what to install on such a board: what heterophony needs, and pip itself."""
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
    """Return what heterophony needs on such a board, with its lower bounds."""
    return select_requirements(read_metadata(), target, {EXTRA})


def select_requirements(metadata: str, target: Target, extras: set[str]) -> list[Requirement]:
    """Return the requirements in a package's metadata that hold on such a board."""
    found = []
    for text in HeaderParser().parsestr(metadata).get_all("Requires-Dist", []):
        requirement = Requirement(text)
        environments = [{**target.marker_environment, "extra": e} for e in ("", *sorted(extras))]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            found.append(requirement)
    return found


def collect_wheels(folder: Path, target: Target, torch: str = "", index_url: str = "") -> int:
    """Download what is missing for such boards into the folder; return how many wheels came."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.whl"))
    needed: dict[NormalizedName, tuple[SpecifierSet, set[str]]] = {}
    queue, done = list_requirements(target, torch), set[str]()
    while queue:
        for requirement in queue:
            name = canonicalize_name(requirement.name)
            specifiers, extras = needed.get(name, (SpecifierSet(), set()))
            needed[name] = specifiers & requirement.specifier, extras | requirement.extras
        open_names = [n for n in needed if n not in done and n not in SKIPPED]
        missing = [n for n in open_names if find_wheel(folder, n, needed[n][0]) is None]
        if missing:
            download(folder, [f"{n}{needed[n][0]}" for n in missing], target, index_url)
        queue = []
        for name in open_names:
            done.add(name)
            wheel = find_wheel(folder, name, needed[name][0])
            if wheel is None:
                raise HeterophonyError(f"pip downloaded no wheel of {name} to {folder}")
            queue += select_requirements(read_wheel_metadata(wheel), target, needed[name][1])
    return len(set(folder.glob("*.whl")) - before)


def find_wheel(folder: Path, name: str, specifiers: SpecifierSet) -> Path | None:
    """Return the newest wheel of a package in the folder that the requirement allows."""
    found = []
    for path in folder.glob("*.whl"):
        wheel_name, version, _, _ = parse_wheel_filename(path.name)
        if wheel_name == name and specifiers.contains(version.public, prereleases=True):
            found.append((version, path))
    return max(found)[1] if found else None


def read_wheel_metadata(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        (name,) = (
            n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1
        )
        return archive.read(name).decode()


def download(folder: Path, requirements: Iterable[str], target: Target, index_url: str) -> None:
    """Call pip; raise its own error in one line."""
    # -P: a pip.py of the current folder is not meant
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
