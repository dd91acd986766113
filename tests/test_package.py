"""The package: one version, and a wheel that holds every file of the package and nothing else."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import yaml

import heterophony

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "heterophony"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_in_one_place_and_told_elsewhere():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == heterophony.__version__
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {heterophony.__version__} (" in changes


def test_every_file_beside_the_code_is_in_the_wheel():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["heterophony"]
    files = [p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    names = [p.relative_to(PACKAGE).as_posix() for p in files if p.suffix != ".py"]
    assert [n for n in names if not any(fnmatch(n, pattern) for pattern in patterns)] == []
    assert {"py.typed", "cli/new_study/study.toml", "algorithms/table.json"} <= set(names)


def test_every_package_is_found():
    """A folder without ``__init__.py`` would be left out of the wheel, with its modules."""
    assert PROJECT["tool"]["setuptools"]["packages"]["find"] == {"where": ["src"]}
    folders = {p.parent for p in PACKAGE.rglob("*.py")}
    assert [f.name for f in folders if not (f / "__init__.py").exists()] == []


def test_the_readme_leads_to_the_repository_where_pypi_shows_it():
    loader = SourceFileLoader("dist", str(ROOT / "scripts" / "dist"))
    module = module_from_spec(spec_from_loader("dist", loader))
    loader.exec_module(module)
    text = module.make_links_absolute((ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    assert f"{module.IMAGES}/docs/images/demo.png" in targets
    assert f"{module.PAGES}/docs/index.md" in targets


def test_links_of_the_project_are_complete():
    project = PROJECT["project"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(project["urls"])
    assert project["authors"]
    assert all(url.startswith("https://") for url in project["urls"].values())


def test_forms_and_workflows_can_be_read():
    forms = [p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    for form in forms:
        fields = yaml.safe_load(form.read_text())["body"]
        assert {key for field in fields for key in field["attributes"]} <= {"label", "description", "render"}  # fmt: skip
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        commands = re.findall(r"- run: make (\S+)", file.read_text())
        targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(commands) <= set(targets)
        assert yaml.safe_load(file.read_text())["jobs"]


def test_every_action_of_the_workflows_is_named_by_its_commit():
    found = {
        line.strip()
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in file.read_text().splitlines()
        if "uses:" in line
    }
    pinned = re.compile(r"(- )?uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert len(found) > 5
    assert [line for line in found if not pinned.fullmatch(line)] == []
    names = [re.search(r"uses: (\S+)@(\S+)", line) for line in found]
    assert len({n[1] for n in names}) == len({n[0] for n in names})  # one commit of each


def test_workflows_run_scripts_that_exist_and_install_tools_of_a_version():
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = file.read_text()
        assert all((ROOT / script).is_file() for script in re.findall(r"\bscripts/\w+", text))
        tools = re.findall(r"pip install ((?!-c |\.)\S+)", text)
        assert all("==" in tool for tool in tools), tools


def test_the_conda_recipe_has_the_version_and_the_dependencies_of_the_package():
    recipe = yaml.safe_load((ROOT / "packaging" / "conda-forge" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == heterophony.__version__.partition(".dev")[0]
    other_names = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    found = [line.split(" ") for line in recipe["requirements"]["run"]]
    needed = {other_names.get(name, name) + least for name, least in found}
    python = f"python{PROJECT['project']['requires-python']}"
    assert needed == {python, *PROJECT["project"]["dependencies"]}
