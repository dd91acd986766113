"""The rules the codebase is built by, checked: imports, pickle, first lines, copied code."""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "heterophony"
MODULES = sorted(SOURCE.rglob("*.py"))
ALGORITHMS = sorted(p for p in (SOURCE / "algorithms").glob("*.py") if p.name != "__init__.py")
VOCABULARY = {"algorithm", "client", "errors", "net", "samples", "settings", "tensors"}
OUTSIDE = {
    "torch",
    "math",
    "copy",
    "dataclasses",
    "typing",
    "collections",
    "functools",
    "itertools",
}
# lower rooms must not know the higher ones; who only reads files must not know torch
BELOW = {"tensors", "randomness", "settings", "moves", "samples", "net", "client", "algorithm"}
WITH_TORCH = {*BELOW, "config", "engines", "loop", "place", "plan", "store"}
FORBIDDEN = [
    (
        BELOW,
        {"algorithms", "models", "engines", "plan", "loop", "store", "cli", "report", "config"},
    ),
    ({"data", "models"}, {"engines", "plan", "loop", "store", "cli", "report"}),
    (
        {"plan", "loop", "newcomers", "place", "store", "engines"},
        {"cli", "report", "config", "trackers"},
    ),
    (
        {"mqtt"},  # it carries jobs and replies of any algorithm
        {"algorithms", "cli", "config", "library", "loop", "report", "store", "trackers"},
    ),
    ({"report"}, {"cli", "engines", "loop", "plan"}),
    ({"significance"}, {"cli", "config", "engines", "loop", "plan", "report", "results", "store"}),
    ({"errors", "files", "folders", "results"}, {"torch", "numpy", "cli", "report", *WITH_TORCH}),
    ({"audit"}, {"algorithms", "cli", "library", "loop", "report", "session", "trackers"}),
    ({"papers"}, {"cli", "engines", "loop", "plan", "report", "store"}),
    (
        {"trackers"},  # they are told numbers: nothing of theirs can reach the run
        {"algorithm", "cli", "client", "config", "engines", "library", "loop", "plan", "report"}
        | {"session", "store", "tensors"},
    ),
]


def room(path: Path) -> str:
    """The first part of a module's path below the package."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Whatever is imported: rooms of ours by their name, others by their first word."""
    found = set()
    depth = len(path.relative_to(SOURCE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {(node.module or a.name).split(".")[0] for a in node.names}
    return found


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_an_algorithm_imports_only_the_vocabulary_and_torch(path):
    assert imports(path) <= VOCABULARY | OUTSIDE


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_dependencies_point_one_way(path):
    for rooms, above in FORBIDDEN:
        if room(path) in rooms:
            assert not imports(path) & above


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_module_says_in_its_first_line_what_it_is_for(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert text.splitlines()[0].removeprefix('"""').strip('"').rstrip().endswith((".", ":", "?"))


EXTRAS = {  # package: the one file that imports it
    "cryptography": "mqtt/certificates.py",
    "mlflow": "trackers/mlflow.py",
    "paho": "mqtt/link.py",
    "ray": "engines/ray.py",
    "tensorboard": "trackers/tensorboard.py",
    "wandb": "trackers/wandb.py",
}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_package_of_an_extra_is_imported_only_by_its_own_file(path):
    text = path.read_text()
    for package, file in EXTRAS.items():
        if name(path) != file:
            assert package not in imports(path)
            assert f"torch.utils.{package}" not in text


PURE = {
    *("assignments", "chunks", "desk", "envelope", "forms", "guests", "hub", "ledger", "messages"),
    *("news", "overview", "pantry", "patience", "pulls", "shelf", "station", "topics", "wire"),
}
PROTOCOL = [p for p in MODULES if room(p) == "mqtt" and p.stem in PURE]


@pytest.mark.parametrize("path", PROTOCOL, ids=name)
def test_the_protocol_has_no_clock_no_thread_no_chance_and_no_network(path):
    outside = {"asyncio", "os", "paho", "queue", "random", "socket", "ssl", "threading", "time"}
    assert not imports(path) & outside


PICKLING = {  # file: all that it may use of pickle
    "engines/pool.py": None,  # only to its own children
    "data/sources/unpickle.py": {"_Unpickler", "UnpicklingError"},  # CIFAR, restricted
}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_pool_pickles_and_only_to_its_own_children(path):
    text = path.read_text()
    assert "torch.load" not in text
    assert "allow_pickle=True" not in text
    assert ("pickle" in imports(path)) == (name(path) in PICKLING)


def test_the_reader_of_cifar_uses_pickle_only_with_its_own_list_of_names():
    """No ``load`` but that of the one class, which decides itself what a name stands for."""
    tree = ast.parse((SOURCE / "data/sources/unpickle.py").read_text())
    used = {n.attr for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "pickle"}  # fmt: skip
    assert used == PICKLING["data/sources/unpickle.py"]
    assert not any(isinstance(n, ast.ImportFrom) and n.module == "pickle" for n in ast.walk(tree))
    heirs = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.bases]
    assert [
        (c.name, [f.name for f in c.body if isinstance(f, ast.FunctionDef)]) for c in heirs
    ] == [("Restricted", ["find_class"])]
    asked = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    names = {getattr(c.func, "id", None) for c in asked}
    assert not names & {"super", "getattr", "__import__", "eval", "exec"}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_global_randomness_no_clock_no_environment_in_the_core(path):
    if room(path) in ("algorithm", "algorithms", "client", "tensors", "samples"):
        assert not imports(path) & {"os", "time", "random", "datetime"}


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_an_algorithm_is_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 90


def test_no_algorithm_copies_another():
    """No run of six equal lines of code in two algorithm files."""

    def runs(path: Path) -> set[tuple[str, ...]]:
        lines = [s for line in path.read_text().splitlines() if (s := line.strip())]
        code = [s for s in lines if not s.startswith(("import", "from", "#", '"""'))]
        return {tuple(code[i : i + 6]) for i in range(len(code) - 5)}

    for a, b in combinations(ALGORITHMS, 2):
        assert not runs(a) & runs(b), f"{a.name} and {b.name}"
