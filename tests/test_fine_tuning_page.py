"""The page of the fine-tuning table: written from stored runs, with every number that it promises."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from heterophony.config.reading import resolve_config
from heterophony.papers.reproduce import CellRun
from heterophony.papers.table import load_table
from heterophony.results.runs import load_runs
from heterophony.runs.folder import RunFolder
from heterophony.studies.run import run_one
from heterophony.studies.spec import RunSpec

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = spec_from_file_location("report", ROOT / "results" / "fine-tuning" / "report.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_the_methods_and_federations_of_the_page():
    table = load_table("fine-tuning")
    rows = list(dict.fromkeys(cell.row for cell in table.cells))
    assert rows == [
        *("Full fine-tuning", "Linear probe", "LoRA", "FedSA-LoRA", "FFA-LoRA", "FedDPA"),
        *("FedPer", "Local"),
    ]
    assert table.measured.seeds == [0, 1, 2, 3, 4]
    found = {
        (c.config["data"]["clients"], c.config["data"]["partition"]["alpha"]) for c in table.cells
    }
    assert found == {(20, 0.1), (20, 0.5)}
    assert (table.pretraining["data"]["name"], table.cells[0].config["data"]["name"]) == (
        *("cifar100-small", "cifar10-small"),
    )


def test_the_page_is_written_from_finished_runs(report, tmp_path, monkeypatch):
    short = {"rounds": 1, "data": {"name": "digits", "clients": 3}, "model": {"name": "mlp"}}
    table = replace(load_table("fine-tuning"), settings=short)
    for cell in table.cells:
        if cell.column.endswith("0.5") and cell.row in ("Linear probe", "FedSA-LoRA", "Local"):
            task = CellRun(cell, 0)
            config = resolve_config({**task.config, "engine": {"name": "serial"}})
            spec, folder = RunSpec(config).load_data(), RunFolder(tmp_path / task.folder_name)
            folder.create(spec.format_config())
            run_one(spec, folder)
            folder.close()
    page = report.write_page(table, load_runs([tmp_path]))
    head, alpha = page.split("## CIFAR-10, alpha 0.5")
    assert "begin with one `convnet_small`" in head
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in alpha.strip().splitlines()]
    assert lines[0] == ["", "G", "P", "P − Local's", "worst tenth", "MB", "seconds"]
    assert [line[0] for line in lines[2:]] == [
        f"{row} (1 of 5 seeds)" for row in ("Linear probe", "FedSA-LoRA", "Local")
    ]
    assert lines[3][1].endswith("\\*")
    assert (lines[4][1], lines[4][3], lines[4][5]) == ("–", "", "0.0")
    assert all(line[2] != "–" for line in lines[2:])


def test_the_committed_page_is_written_from_the_committed_runs(report):
    table, found = load_table("fine-tuning"), load_runs([report.HERE])
    assert len(report.list_runs(table, found)) == len(table.cells) * len(table.measured.seeds)
    assert report.PAGE.read_text(encoding="utf-8") == report.write_page(table, found)
    assert all(run.summary.model_sha256 for run in found)
