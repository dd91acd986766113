"""The container file: it copies what exists and installs known extras; if asked for, it is built and run.

HETEROPHONY_BUILD holds options of the builder, and may be empty. It asks for the build, which takes minutes and needs
podman or buildah, the base image and the package indexes: HETEROPHONY_BUILD="--from localhost/python" pytest tests/test_container.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = os.environ.get("HETEROPHONY_BUILD")
IMAGE = "localhost/heterophony-test"


def test_the_container_file_names_what_there_is():
    text = (ROOT / "Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for names in re.findall(r"^COPY (.*) \S+$", text, re.M):
        assert all((ROOT / name).exists() for name in names.split())
    extras = re.search(r"^ARG EXTRAS=(.*)$", text, re.M)[1].split(",")
    assert {*extras} <= {*project["optional-dependencies"]}
    version = re.search(r"^FROM \S+python:(\d+\.\d+)-slim$", text, re.M)[1]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert re.findall(r"^ENTRYPOINT (.*)$", text, re.M) == [json.dumps([*project["scripts"]])]


def find_builder() -> str:
    return shutil.which("buildah") or shutil.which("podman") or ""


def run(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.timeout(3600)
@pytest.mark.skipif(BUILD is None or not find_builder(), reason="no build is asked for")
def test_the_container_is_built_and_runs_a_study(tmp_path):
    builder = find_builder()
    run(builder, "build", *(BUILD or "").split(), "-t", IMAGE, str(ROOT))
    study, words = f"{tmp_path}:/study", ["run", "fedper", "-c", "rounds=1", "--out", "mine"]
    if Path(builder).name == "podman":
        run(builder, "run", "--rm", "-v", study, IMAGE, *words)
    else:
        container = run(builder, "from", IMAGE)
        entry = run(builder, "inspect", "--format", "{{.OCIv1.Config.Entrypoint}}", container)
        run(builder, "run", "-v", study, container, "--", entry.strip("[]"), *words)
        run(builder, "rm", container)
    run(builder, "rmi", IMAGE)
    assert (tmp_path / "mine" / "result.json").exists()
