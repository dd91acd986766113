"""The rules the codebase is built by, checked: imports, pickle, first lines, copied code."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "heterophony"
MODULES = sorted(SOURCE.rglob("*.py"))
ALGORITHMS = sorted(p for p in (SOURCE / "algorithms").glob("*.py") if p.name != "__init__.py")
VOCABULARY = {
    "adapters",
    "algorithm",
    "client",
    "errors",
    "settings",
    "net",
    "samples",
    "tensors",
    "training",
}
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
# modules that read many run folders, or that every command imports: no torch, so that they are quick
WITHOUT_TORCH = {
    "core/errors.py",
    "core/files.py",
    "runs/curves.py",
    "runs/events.py",
    "runs/run_index.py",
    "runs/summary.py",
}


def read_packages() -> dict[str, set[str]]:
    """Read the table of packages in CONTRIBUTING.md: what each one may import."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", text, re.M)
    return {name: set(re.findall(r"\w+", allowed)) for name, allowed in rows}


PACKAGES = read_packages()


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def package(path: Path) -> str:
    """The package a module lies in; the public face lies in none."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def own_imports(path: Path) -> set[str]:
    """The modules of ours that a module imports, as dotted names below the package."""
    return {module for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level
            for module in find_imported(path, node)}  # fmt: skip


def find_imported(path: Path, node: ast.ImportFrom) -> set[str]:
    """The modules that one relative import names: ``from . import a, b`` may name two."""
    folder = path.relative_to(SOURCE).parts[:-1]
    base = [*folder[: len(folder) - node.level + 1], *filter(None, [node.module])]
    inside = {a.name for a in node.names if SOURCE.joinpath(*base, f"{a.name}.py").exists()}
    inside |= {a.name for a in node.names if not base}
    whole = {".".join(base)} if len(inside) < len(node.names) else set()
    return whole | {".".join([*base, name]) for name in inside}


def imports(path: Path) -> set[str]:
    """Other packages that a module imports, by their first word."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def test_the_table_of_packages_lists_every_package_from_the_bottom_up():
    assert set(PACKAGES) == {package(p) for p in MODULES} - {""}
    lower: set[str] = set()
    for room, allowed in PACKAGES.items():
        assert allowed <= lower, f"{room} may import only packages above it in the table"
        lower.add(room)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_imports_only_what_its_package_may(path):
    if package(path) == "":  # the public face names everything
        return
    used = {m.split(".")[0] for m in own_imports(path)} - {package(path), "__version__"}
    assert used <= PACKAGES[package(path)]


def test_nothing_lies_in_the_root_but_the_public_face():
    assert {p.name for p in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_an_algorithm_imports_only_the_vocabulary_its_parts_and_torch(path):
    ours = {m.removeprefix("core.") for m in own_imports(path)}
    shared = {m for m in ours if m.startswith("algorithms.")}
    assert ours - shared <= VOCABULARY
    assert imports(path) <= OUTSIDE


@pytest.mark.parametrize("module", sorted(WITHOUT_TORCH))
def test_what_only_reads_files_needs_no_torch(module):
    def reach(path: Path, seen: set[Path]) -> set[Path]:
        seen.add(path)
        for dotted in own_imports(path):
            for file in (SOURCE / f"{dotted.replace('.', '/')}.py",):
                if file.exists() and file not in seen:
                    reach(file, seen)
        return seen

    for path in reach(SOURCE / module, set()):
        assert not imports(path) & {"torch", "numpy"}, path


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_module_says_in_its_first_line_what_it_is_for(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert text.splitlines()[0].removeprefix('"""').strip('"').rstrip().endswith((".", ":", "?"))


EXTRAS = {  # package: the one file or folder that imports it
    "packaging": "boards/fleet/",
    "cloudpickle": "engines/wire.py",
    "cryptography": "boards/broker/certificates.py",
    "mlflow": "trackers/mlflow.py",
    "pandas": "runs/result.py",
    "paho": "boards/transport/paho_client.py",
    "ray": "engines/ray/",
    "dp_accounting": "protection/accounting.py",
    "opacus": "protection/private_client.py",
    "tensorboard": "trackers/tensorboard.py",
    "wandb": "trackers/wandb.py",
}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_package_of_an_extra_is_imported_only_by_its_own_file(path):
    text = path.read_text()
    for package, file in EXTRAS.items():
        if not name(path).startswith(file):
            assert package not in imports(path)
            assert f"torch.utils.{package}" not in text


PROTOCOL = [p for p in MODULES if "protocol" in p.parts]


@pytest.mark.parametrize("path", PROTOCOL, ids=name)
def test_the_protocol_has_no_clock_no_thread_no_chance_and_no_network(path):
    outside = {"asyncio", "os", "paho", "queue", "random", "socket", "ssl", "threading", "time"}
    assert not imports(path) & outside


PICKLING = {  # file: all that it may use of pickle
    "engines/wire.py": None,  # only to its own children
    "data/sources/reading.py": {"_Unpickler", "UnpicklingError"},  # CIFAR, restricted
}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_pool_pickles_and_only_to_its_own_children(path):
    text = path.read_text()
    assert "torch.load" not in text
    assert "allow_pickle=True" not in text
    assert ("pickle" in imports(path)) == (name(path) in PICKLING)


def test_the_reader_of_cifar_uses_pickle_only_with_its_own_list_of_names():
    """No ``load`` but that of the one class, which decides itself what a name stands for."""
    tree = ast.parse((SOURCE / "data/sources/reading.py").read_text())
    used = {n.attr for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "pickle"}  # fmt: skip
    assert used == PICKLING["data/sources/reading.py"]
    assert not any(isinstance(n, ast.ImportFrom) and n.module == "pickle" for n in ast.walk(tree))
    heirs = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.bases]
    assert [
        (c.name, [f.name for f in c.body if isinstance(f, ast.FunctionDef)]) for c in heirs
    ] == [("RestrictedUnpickler", ["find_class"])]
    asked = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    names = {getattr(c.func, "id", None) for c in asked}
    assert not names & {"super", "getattr", "__import__", "eval", "exec"}


CORE_WITHOUT_CLOCK = {f"core/{m}.py" for m in ("algorithm", "client", "tensors", "samples")}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_global_randomness_no_clock_no_environment_in_the_core(path):
    if package(path) == "algorithms" or name(path) in CORE_WITHOUT_CLOCK:
        assert not imports(path) & {"os", "time", "random", "datetime"}


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_an_algorithm_is_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 105


def test_no_algorithm_copies_another():
    """No run of six equal lines of code in two algorithm files."""

    def runs(path: Path) -> set[tuple[str, ...]]:
        lines = [s for line in path.read_text().splitlines() if (s := line.strip())]
        code = [s for s in lines if not s.startswith(("import", "from", "#", '"""'))]
        return {tuple(code[i : i + 6]) for i in range(len(code) - 5)}

    for a, b in combinations(ALGORITHMS, 2):
        assert not runs(a) & runs(b), f"{a.name} and {b.name}"


def test_modules_are_chapters():
    """250 to 300 modules, and at most seven of a hundred lines are imports."""
    assert 250 <= len(MODULES) <= 300
    imported = sum(
        node.end_lineno - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    assert imported <= 0.07 * sum(len(path.read_text().splitlines()) for path in MODULES)


def test_no_module_imports_itself_in_the_end():
    """No cycle of imports, also none through an import inside a function."""
    edges = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): {
            module for module in own_imports(path) if path != SOURCE / f"{module}.py"
        }
        for path in MODULES
    }
    while ends := [module for module, used in edges.items() if not used & edges.keys()]:
        for module in ends:
            del edges[module]
    assert not edges


# functions that may be longer, or take more than seven parameters, and why
LONG = {
    "studies/run.py:run",  # the main call: its docstring documents each of thirty parameters
    "core/client.py:fit",  # what authors of algorithms call: the only training loop
}
# functions that may take more than seven parameters, whose docstrings may document each of them
DOCUMENTED = {"studies/federate.py:federate"}


def list_functions(path: Path) -> list[tuple[str, ast.FunctionDef]]:
    tree = ast.parse(path.read_text())
    return [
        (f"{name(path)}:{node.name}", node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_function_is_short(path):
    for function, node in list_functions(path):
        lines = node.end_lineno - node.lineno
        if function in DOCUMENTED:
            lines -= node.body[0].end_lineno - node.body[0].lineno + 1
        assert lines < 60 or function in LONG, function


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_function_takes_at_most_seven_parameters(path):
    """Commands of the command line take one for each option."""
    for function, node in list_functions(path):
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        options = package(path) == "cli"
        count = sum(a.arg not in ("self", "cls") for a in args)
        assert count <= 7 or options or function in LONG | DOCUMENTED, function


def test_what_is_decided_once_is_in_one_place():
    functions = [function for path in MODULES for function, _ in list_functions(path)]
    assert [f for f in functions if f.endswith(":to_toml")] == ["config/config.py:to_toml"]
    users = {name(path) for path in MODULES if "share_cluster(" in path.read_text()}
    assert users == {"engines/ray/engine.py", "studies/many.py"}
    text = (SOURCE / "studies/many.py").read_text()
    assert text.count("run_side_by_side(") == 3  # its definition, and twice in ``run_many``
    assert text.count("share_cluster(") == 1
    assert text.count("run_one_by_one(") == 2
