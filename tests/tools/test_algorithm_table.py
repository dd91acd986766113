"""The stored table of algorithms: right wherever it is used, and never needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from heterophony import algorithms
from heterophony.algorithms import ALGORITHM_CLASSES, read_stored_rows
from heterophony.tools.tables import compute_algorithm_row, list_algorithm_rows


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_a_stored_row_that_is_used_is_right(name):
    stored = read_stored_rows().get(name)
    assert stored is None or stored == json.loads(json.dumps(compute_algorithm_row(name))), (
        "run scripts/generate"
    )


def test_an_algorithm_that_is_new_or_has_changed_is_computed(tmp_path, monkeypatch):
    table = json.loads(algorithms.TABLE_FILE.read_text())
    del table["fedavg"]
    table["fedper"] |= {"source_sha256": "", "row": {"name": "of before"}}
    (tmp_path / "table.json").write_text(json.dumps(table))
    monkeypatch.setattr(algorithms, "TABLE_FILE", tmp_path / "table.json")
    rows = {r["name"]: r for r in list_algorithm_rows()}
    assert list(rows) == sorted(ALGORITHM_CLASSES)
    assert rows["fedavg"]["bytes_up"] == 1.0
    assert rows["fedper"]["stays"] == "head.*"


def test_listing_algorithms_does_not_import_torch():
    unchanged = set(read_stored_rows()) == set(ALGORITHM_CLASSES)
    code = (
        "import sys; sys.argv = ['heterophony', 'list', 'algorithms']\n"
        "from heterophony.cli import app\n"
        "try: app()\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(not unchanged)
