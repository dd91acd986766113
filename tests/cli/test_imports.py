"""What commands import: in a folder full of traps, and on a stranger's files, nothing that lies there.

The list of `scripts/generated/imports.py` is tried line by line, and is what SECURITY.md says.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

from helpers.boards import installed
from helpers.commands import call
from heterophony.boards.broker.process import stop_mosquitto
from heterophony.cli import app

ROOT = Path(__file__).parents[2]
SMALL = [
    "rounds=1",
    "data.clients=2",
    "model.name=mlp",
    "training.steps=1",
    "engine.name=serial",
    "data.name=digits",
]
# what other packages look for in vain: torch, typer's rich, requests, joblib, scipy, Ray, tqdm, …
LOOKED_FOR = [
    "acl",
    "aiohttp",
    "amdsmi",
    "backports_abc",
    "brotli",
    "brotlicffi",
    "chardet",
    "colorful",
    "cuda",
    "cython",
    "dill",
    "dpctl",
    "envwrap",
    "fqdn",
    "furiosa_smi_py",
    "habana_frameworks",
    "isoduration",
    "jsonpointer",
    "linkify_it",
    "lz4",
    "monkeytype",
    "org",
    "pandas",
    "pyarrow",
    "pydot",
    "pymxsml",
    "pynvml",
    "qbruntime",
    "rebel",
    "rfc3339_validator",
    "rfc3986_validator",
    "rfc3987",
    "rfc3987_syntax",
    "scikits",
    "simplejson",
    "sksparse",
    "sniffio",
    "socks",
    "torchcomms",
    "uarray",
    "uri_template",
    "uvloop",
    "webcolors",
    "winreg",
    "zstandard",
]
TRAP = "import os\nwith open(os.environ['TRAPS'], 'a') as file:\n    file.write(__file__ + '\\n')\n"
THEIR_SETTINGS = (
    '[algorithm]\nname = "org:Algorithm"\nown = 1\n[data]\nname = "digits"\nclients = 2\n'
)


def load_script() -> ModuleType:
    loader = SourceFileLoader("imports_table", str(ROOT / "scripts" / "generated" / "imports.py"))
    module = module_from_spec(spec_from_loader("imports_table", loader))
    sys.modules["imports_table"] = module  # its dataclass looks there
    loader.exec_module(module)
    return module


TABLE = load_script()
TRIES = [(code, words) for row in TABLE.ROWS for code, words in row.tries]


@cache
def list_packages() -> set[str]:
    """Every package that a module of ours imports, now or later, or asks for by its name."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module)
            elif (
                isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
            ):
                name = getattr(node.func, "id", "")
                found |= {node.args[0].value} if name in ("import_module", "find_spec") else set()
    return {"heterophony", *(name.split(".")[0] for name in found)} - set(sys.stdlib_module_names)


def set_traps(*folders: Path) -> None:
    for folder in folders:
        for name in {*list_packages(), *LOOKED_FOR}:
            (folder / f"{name}.py").write_text(TRAP)


@pytest.fixture
def trapped(tmp_path, monkeypatch) -> Path:
    """The current folder with what a stranger has put there, and the stranger's own folder beside it."""
    here, stranger = tmp_path / "here", tmp_path / "stranger"
    for folder in (here, stranger):
        folder.mkdir()
    monkeypatch.chdir(here)
    assert call("run", "fedavg", *join("-c", SMALL), "--out", "theirs").exit_code == 0
    assert call("leaderboard", "add", "good", "theirs").exit_code == 0
    shutil.copytree("good", "evil")
    (evil,) = (here / "evil").iterdir()
    text = (evil / "config.toml").read_text()
    (evil / "config.toml").write_text(text.replace('"fedavg"', '"algorithm:Evil"'))
    (evil / "algorithm.py").write_text(TRAP)
    for name in ("config.toml", "events.jsonl", "result.json"):
        file = here / "theirs" / name
        file.write_text(file.read_text().replace('"fedavg"', '"org:Algorithm"'))
    shutil.copytree("theirs", "swept/theirs")
    (here / "swept/theirs/events.jsonl").unlink()  # not finished
    runs = {"theirs": {"settings": {}, "seed": 0}}
    sweep = {"settings": ["training.lr"], "runs": runs, "failed": {}}
    (here / "swept/sweep.json").write_text(json.dumps(sweep))
    (here / "tuned").mkdir()
    tune = {"algorithms": ["org:Algorithm"], "settings": ["training.lr=0.1,0.2"], "overrides": []}
    (here / "tuned/tune.json").write_text(json.dumps({**tune, "seeds": [0]}))
    (stranger / "settings.toml").write_text(THEIR_SETTINGS)
    (stranger / "model.toml").write_text('[model]\nname = "org:make_net"\n')
    (stranger / "boards.toml").write_text(
        'ssh_config = "ssh_config"\n[boards.nano]\nssh = "nano"\n'
    )
    (stranger / "ssh_config").write_text("Host nano\n  HostName 127.0.0.1\n  Port 1\n")  # nobody
    set_traps(here, stranger, here / "theirs", evil, next((here / "good").iterdir()))
    return here


def join(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def complete(words: str, stranger: Path) -> list[str]:
    """Replace the words that stand for others."""
    named = words.replace("THEIRS", str(stranger)).split()
    return [w for n in named for w in (join("-c", SMALL) if n == "SMALL" else [n])]


def run_trapped(words: list[str], log: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    how = {"input": stdin, "capture_output": True, "text": True, "timeout": 280}
    return subprocess.run([sys.executable, *words], env={**os.environ, "TRAPS": str(log)}, **how)


def test_no_command_imports_what_lies_around(trapped, tmp_path):
    installed()  # Mosquitto
    first = [["broker", "up", "broker", "--port", "0"]]
    first += [["broker", "enrol", "one", "broker", "-o", "broker/one.toml"]]
    commands = [*first, *(complete(words, tmp_path / "stranger") for _, words in TRIES)]
    log, answers = tmp_path / "sprung", tmp_path / "answers.json"
    driver = str(ROOT / "tests" / "helpers" / "trapped_commands.py")
    try:
        asked = json.dumps([*commands, ["hp.load", "theirs"]])
        done = run_trapped([driver, str(answers)], log, asked)
    finally:
        stop_mosquitto(trapped / "broker")
    assert done.returncode == 0, done.stderr
    *called, refusal = json.loads(answers.read_text())
    assert not log.exists(), log.read_text()
    ended = [(" ".join(w), c["code"], c["said"]) for w, c in zip(commands, called, strict=True)]
    for (words, code, said), wanted in zip(ended[2:], [code for code, _ in TRIES], strict=True):
        assert code == wanted, (words, said)
    assert [c["path"] for c in called] == [[]] * len(called)  # the folder is on nobody's path
    would = f"would import {trapped / 'org.py'}"
    assert would in refusal
    said = {words: text for words, _, text in ended}
    for words in ("resume theirs", "resume swept", "resume tuned"):
        assert would in said[words]
    (evil,) = Path("evil").iterdir()
    assert (
        f"brings code of its own, {evil / 'algorithm.py'}; read it"
        in said["leaderboard check evil"]
    )


def test_as_a_module_too_it_does_not_search_the_current_folder(tmp_path, monkeypatch):
    """`python -m` puts it first."""
    monkeypatch.chdir(tmp_path)
    set_traps(tmp_path)
    (tmp_path / "heterophony.py").unlink()  # else Python itself runs that
    done = run_trapped(["-m", "heterophony", "list", "partitions"], tmp_path / "sprung")
    assert done.returncode == 0, done.stderr
    assert "dirichlet" in done.stdout
    assert not (tmp_path / "sprung").exists()


def test_every_command_is_in_the_list_and_is_tried():
    def walk(group, *above: str):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, *above, name)
            else:
                yield " ".join([*above, name])

    listed = [name for row in TABLE.ROWS for name in row.commands]
    assert sorted(listed) == sorted(walk(get_command(app)))
    for row in TABLE.ROWS:
        tried = {words.replace("THEIRS/boards.toml ", "") for _, words in row.tries}
        for name in row.commands:
            assert any(f"{words} ".startswith(f"{name} ") for words in tried), name


def test_security_says_what_the_list_says():
    page = (ROOT / "SECURITY.md").read_text()
    assert TABLE.write_table() in page
    assert page == TABLE.put_table(page), "run scripts/generate"
