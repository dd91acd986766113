"""The example notebook in a real kernel: own classes on the pool, figures, and little output."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "own_classes.ipynb"


@pytest.mark.parametrize("name", ["fine_tuning", "first_steps", "own_classes", "personal_models"])
def test_a_notebook_says_how_it_is_installed_on_colab(name):
    first = nbformat.read(NOTEBOOK.with_name(f"{name}.ipynb"), as_version=4).cells[0].source
    (line,) = re.findall(r'`!pip install -q "heterophony(\[\w+\])? @ git\+(https://\S+)"`', first)
    project = tomllib.loads((NOTEBOOK.parents[1] / "pyproject.toml").read_text())["project"]
    assert line[1] == project["urls"]["Homepage"]


@pytest.mark.filterwarnings("default")  # those of the kernel's packages are not ours
def test_classes_of_a_cell_run_on_the_pool_with_the_serial_bits_and_are_displayed(
    tmp_path, monkeypatch
):
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [c.get("outputs") for c in notebook.cells if c.get("outputs")] == []  # none stored
    NotebookClient(notebook, timeout=120).execute(cwd=str(tmp_path))
    shown, run, figure, digests = [c.outputs for c in notebook.cells if c.cell_type == "code"][1:]
    assert shown == []
    progress, table = run  # one line that was changed in place, and the result
    assert progress.output_type == "display_data"
    assert progress.data["text/plain"].startswith("HeadFirst (seed 0) on cpu: 3 rounds, G ")
    assert "<table>" in table.data["text/html"]
    assert ["image/png" in output.data for output in figure] == [True]
    (printed,) = digests
    assert printed.name == "stdout"
    (pool, serial) = printed.text.split()
    assert len(pool) == 64
    assert pool == serial


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["fine_tuning", "first_steps", "personal_models"])
def test_a_notebook_runs_and_shows_what_it_says(name, tmp_path, monkeypatch):
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK.with_name(f"{name}.ipynb"), as_version=4)
    assert [c.get("outputs") for c in notebook.cells if c.get("outputs")] == []  # none stored
    NotebookClient(notebook, timeout=120).execute(cwd=str(tmp_path))
    outputs = [c.outputs for c in notebook.cells if c.cell_type == "code"]
    if name == "first_steps":
        assert outputs[2][0].text.count("G 0.") == 2
        assert "image/png" in outputs[3][0].data
        assert outputs[4][0].text.count("→") == 3
    elif name == "fine_tuning":
        assert outputs[3][0].text.count(" MB\n") == 3
        assert outputs[4][-1].data["text/plain"] == "True"
    else:
        right, _, accuracy = outputs[2][0].text.partition(" and ")
        numbers = [int(n) for n in re.findall(r"\d+", right)]  # personal, generic, all
        assert numbers[0] / numbers[2] == float(accuracy)  # the model is the one that was measured
        assert outputs[3][-1].data["text/plain"] == "True"
