"""The command line: results on stdout, one clear line and the right exit code for every mistake."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

import heterophony
from helpers.commands import TRAINING, call, refused
from helpers.forked import Forked
from helpers.support import blobs, played
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.data.partitions import PARTITIONS
from heterophony.data.sources import SOURCES
from heterophony.models import MODEL_DESCRIPTIONS
from heterophony.results.overview import explain_missing_g
from heterophony.runs.folder import RunFolder
from heterophony.studies.hooks import RunStatus

QUICK = ("rounds=2", "data.clients=4", "training.epochs=1", *TRAINING, "engine.name=serial")


def pairs(*settings: str) -> list[str]:
    return [word for s in settings for word in ("-c", s)]


def good(*words: str | Path) -> Result:
    done = call(*words)
    assert done.exit_code == 0, done.stderr
    return done


def data(*words: str | Path) -> Any:
    """What --json prints: nothing else is on stdout."""
    return json.loads(good(*words, "--json").stdout)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to be in, and no terminal to be seen by."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run; not to be changed."""
    out = tmp_path_factory.mktemp("cli") / "finished"
    good("run", *pairs(*QUICK), "--out", out)
    return out


@pytest.fixture
def copied(finished, tmp_path) -> RunFolder:
    """A finished run to be damaged."""
    shutil.copytree(finished, tmp_path / "mine")
    return RunFolder(Path("mine"))


# Run ------------------------------------------------------------------------------------------


def test_run_prints_a_table_and_fills_a_folder():
    done = good("run", *pairs(*QUICK))
    out = Path("runs/fedavg-digits-1")
    lines = done.stdout.splitlines()
    assert lines[0] == "FedAvg, 2 rounds, seed 0: accuracy in %"
    assert (
        " ".join(" ".join(lines[1:4]).split())
        == "worst 10 % of test best last last 10 clients loss"
    )
    assert [line[:16].strip() for line in lines[5:]] == ["G, generic model", "P, own models"]
    result = json.loads((out / "result.json").read_text())
    assert f" {100 * result['G']['best']:.2f} (round {result['G']['best_round']}) " in lines[5]
    assert done.stderr.splitlines()[-1] == f"{out}; a page with curves: heterophony report {out}"
    assert {p.name for p in out.iterdir()} == {
        *("commits", "config.toml", "events.jsonl", "lock", "partition.json", "result.json")
    }
    good("run", *pairs(*QUICK))
    assert Path("runs/fedavg-digits-2/result.json").is_file()


def test_run_with_json_prints_result_json():
    found = data("run", *pairs(*QUICK, "algorithm.name=local"), "--out", "mine")
    assert found == json.loads(Path("mine/result.json").read_text())
    assert found["algorithm"] == "local"
    assert found["G"] is None
    assert found["rounds"] == 2
    assert list(found["clients"]) == ["0", "1", "2", "3"]
    assert len(found["model_sha256"]) == 64


def test_a_run_that_measures_P_seldom_has_a_table_a_bar_and_a_page():
    seldom = ("algorithm.name=fedbabu", "algorithm.tune_every=3", "algorithm.tune_epochs=1")
    ran = good("run", *pairs(*QUICK[1:], "rounds=4", *seldom), "--out", "mine")
    assert "P, own models" in ran.stdout
    events = [json.loads(line) for line in Path("mine/events.jsonl").read_text().splitlines()]
    measured = [e for e in events if e["event"] == "evaluation"]
    assert [e["P"] is None for e in measured] == [False, True, True, False, False]
    status = RunStatus("fedbabu", 4)
    for event in events[: events.index(measured[2]) + 1]:
        status(event)
    right, tested = sum(measured[0]["P"]), sum(events[0]["test"])
    assert f"{100 * right / tested:.2f}" == status.P  # the newest there is
    assert f"{100 * sum(measured[2]['G']) / tested:.2f}" == status.G
    resumed = RunStatus("fedbabu", 4, events[0]["test"])  # it sees no start event
    resumed(measured[2])
    assert resumed.G == status.G
    good("report", "mine")
    assert Path("mine/report.html").is_file()


def test_a_run_can_be_repeated_from_its_config_alone(finished):
    again = data("run", finished / "config.toml", "--out", "again")
    first = json.loads((finished / "result.json").read_text())
    assert again["model_sha256"] == first["model_sha256"]
    assert Path("again/config.toml").read_text() == (finished / "config.toml").read_text()


def test_a_file_and_pairs_go_together():
    Path("my.toml").write_text('rounds = 1\n[algorithm]\nname = "fedper"\n')
    found = data("run", "my.toml", *pairs(*QUICK[1:], "seed=3"), "--out", "mine")
    assert (found["algorithm"], found["rounds"], found["seed"]) == ("fedper", 1, 3)


def test_own_data_from_an_npz():
    x, y = blobs([60])[0]
    np.savez("mine.npz", x=x, y=y)
    partition = "data.partition={kind='iid'}"
    good("run", *pairs(*QUICK, "data.name=mine.npz", partition))
    assert Path("runs/fedavg-mine-1/result.json").is_file()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "data.name=digit",
            "data.name: 'digit' is neither a data set nor the path of a .npz file, a .csv",
        ),
        ("data.name=no.npz", "data.name: cannot read no.npz: no such file"),
        ("data.clients=5000", "5000 clients cannot share 1797 examples of digits; lower data.cl"),
        (
            "algorithm.name=fedregg",
            "algorithm.name: unknown name 'fedregg'; did you mean 'fedreg'?",
        ),
        ("local.lrr=1", "training.lrr: unknown key; did you mean 'lr'?"),
        ("training.lr=fast", "training.lr: must be a number, not 'fast'"),
        ("trainin.lr=1", "trainin: unknown key; did you mean 'training'?"),
        ("rounds", "-c rounds: must be key=value, as in -c training.lr=0.01"),
        ("participation.count=5", "participation.count: 5 clients are selected per round, "),
        ("model.name=convnet", "model.name: convnet needs "),
        ("data.partition.min_size=900", "no Dirichlet(0.1) partition gave each of 4 clients at"),
    ],
)
def test_a_wrong_setting_is_one_line_and_leaves_nothing(setting, said):
    assert refused(3, "run", *pairs(*QUICK, setting)).startswith(said)
    assert list(Path().iterdir()) == []


def test_a_data_set_that_is_not_on_this_machine_is_one_line(monkeypatch):
    import pooch

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setenv("HETEROPHONY_DATA", "nowhere")
    monkeypatch.setattr("heterophony.data.sources.download.SYSTEM_FOLDER", Path("not-here"))
    said = refused(3, "run", *pairs(*QUICK, "data.name=fmnist"))
    assert said.startswith("data set 'fmnist' is not on this machine (looked in nowhere")
    assert said.endswith("or put the four idx files into a folder and set data.path")


def test_a_mistake_in_a_file_is_said_with_its_line():
    Path("my.toml").write_text("[training]\n\nlrr = 1\n")
    said = refused(3, "run", "my.toml")
    assert said == "my.toml:3: training.lrr: unknown key; did you mean 'lr'?"


def test_a_used_or_foreign_folder_is_refused(finished):
    assert refused(3, "run", *pairs(*QUICK), "--out", finished) == (
        f"{finished} already holds a run; continue it with `heterophony resume {finished}`"
        " or choose another --out"
    )
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("dear")
    said = refused(3, "run", *pairs(*QUICK), "--out", "mine")
    assert said == "mine is not empty; choose another --out"
    assert refused(3, "run", *pairs(*QUICK), "--out", "mine/letter.txt") == (
        "mine/letter.txt is not empty; choose another --out"
    )


def test_training_that_diverges_is_one_line():
    said = refused(1, "run", *pairs(*QUICK, "training.lr=1e30"))
    assert said.startswith("client ")
    assert "round 0" in said


# Resume ---------------------------------------------------------------------------------------


def test_resume_of_a_finished_run_prints_the_same_result(finished):
    before = (finished / "events.jsonl").read_bytes()
    assert data("resume", finished) == json.loads((finished / "result.json").read_text())
    assert (finished / "events.jsonl").read_bytes() == before


@pytest.mark.parametrize("path", ["nothing", "."])
def test_resume_of_what_is_no_run_is_refused(path):
    Path("letter.txt").write_text("dear")
    said = refused(3, "resume", path)
    assert said == f"{path} is not a run folder: it has no config.toml"


def test_resume_of_a_run_begun_from_python_says_where_to_go_on():
    played("fedavg", rounds=1, out="mine")
    for _ in range(2):  # the refusal does not keep the lock
        assert refused(3, "resume", "mine") == (
            "mine was started from Python with your own data; continue it there with"
            " hp.run(..., out='mine', resume=True)"
        )


def cut(folder: RunFolder) -> None:
    folder.events_file.write_bytes(folder.events_file.read_bytes()[:100])


def scribble(folder: RunFolder) -> None:
    folder.events_file.write_text("dear\n")


def foreign(folder: RunFolder) -> None:
    folder.events_file.write_text("[1, 2]\n")


def spoil(folder: RunFolder) -> None:
    end = folder.events_file.read_text().splitlines(keepends=True)
    folder.events_file.write_text("".join(end[:-1]))  # not finished any more
    for commit in folder.commits_folder.glob("0*"):
        commit.write_bytes(b"dear")


def unsettle(folder: RunFolder) -> None:
    folder.config_file.write_text("rounds = \n")


def replace_data(folder: RunFolder) -> None:
    text = folder.config_file.read_text()
    assert "seed = 0\n" in text
    folder.config_file.write_text(text.replace("seed = 0\n", "seed = 1\n"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "mine/events.jsonl is shorter than its commit says: it was edited; restore it,"),
        (scribble, "mine/events.jsonl is damaged: a line is not JSON"),
        (foreign, "mine/events.jsonl is damaged: a line is not an event"),
        (spoil, "mine/commits is damaged: none of its commits can be read; start the run again"),
        (unsettle, "mine/config.toml: not valid TOML: Invalid value (at line 1, column 10)"),
        (
            replace_data,
            "the data differ from those the run was started with (data_sha256 differs);",
        ),
    ],
)
def test_a_damaged_run_is_said(copied, damage, said):
    damage(copied)
    assert refused(3, "resume", "mine").startswith(said)


def test_a_lost_result_is_written_again(copied):
    whole = copied.result_file.read_bytes()
    copied.result_file.unlink()
    good("resume", "mine")
    assert copied.result_file.read_bytes() == whole


def test_a_lost_end_is_computed_again(copied):
    """Without the last commit and what was recorded after the one before."""
    first = json.loads(copied.result_file.read_text())
    copied.result_file.unlink()
    max(copied.commits_folder.glob("0*")).unlink()
    lines = copied.events_file.read_text().splitlines(keepends=True)
    copied.events_file.write_text("".join(lines[:-2]))
    assert data("resume", "mine")["model_sha256"] == first["model_sha256"]


def test_resume_with_other_workers_is_checked(finished):
    assert call("resume", finished, "--workers", "0").exit_code == 2
    good("resume", finished, "--workers", "3")


# Compare --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Path, list[dict[str, Any]], str]:
    """Two algorithms, two seeds: the folder, the JSON, and the page for people."""
    out = tmp_path_factory.mktemp("cli") / "compared"
    words = ["compare", "fedper", "fedavg", *pairs(*QUICK), "--seeds", "0,1", "--out", out]
    found = data(*words)
    stamps = {p: p.stat().st_mtime_ns for p in out.glob("*/events.jsonl")}
    assert len(stamps) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        table = good(*words)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps  # nothing was computed again
    return out, found, table.stdout


def test_compare_prints_as_json_what_the_contract_says(compared):
    out, found, _ = compared
    assert [r["algorithm"] for r in found] == ["fedper", "fedavg"]  # as asked for
    for r in found:
        assert r["seeds"] == [0, 1]
        runs = [json.loads((out / f"{r['algorithm']}-{s}/result.json").read_text()) for s in (0, 1)]
        for k in ("G", "P"):
            assert r[k] == {
                "best": pytest.approx((runs[0][k]["best"] + runs[1][k]["best"]) / 2),
                "last": pytest.approx((runs[0][k]["last"] + runs[1][k]["last"]) / 2),
                "last10": {
                    part: pytest.approx(sum(x[k]["last10"][part] for x in runs) / 2)
                    for part in ("mean", "std")
                },
            }
    assert found[0]["difference"] is None
    gap = found[1]["difference"]
    assert gap["to"] == "FedPer"
    assert gap["P.best"]["mean"] == pytest.approx(found[1]["P"]["best"] - found[0]["P"]["best"])
    assert gap["P.best"]["ci95"][0] <= gap["P.best"]["mean"] <= gap["P.best"]["ci95"][1]
    assert gap["P.best"]["p_holm"] == gap["P.best"]["p"] >= 0.5  # two pairs


def test_compare_prints_a_table_for_people(compared):
    _, found, table = compared
    title, header, _, *lines = table.splitlines()
    assert title.startswith("accuracy in %; G: the generic model")
    names = ["algorithm", "G best", "G last 10", "P best", "P last 10", "P worst 10 %"]
    assert [w.strip() for w in header.split("  ") if w] == [
        *names,
        "ΔG last 10",
        "ΔP last 10",
        "work",
        "MB",
        "seconds",
    ]
    assert [line.split()[0] for line in lines] == ["FedPer", "FedAvg"]
    mean = 100 * found[0]["G"]["best"]
    assert lines[0].split()[1] == f"{mean:.2f}"
    assert lines[0].split()[2] == "±"


def test_a_comparison_fits_eighty_columns(compared):
    done = good("resume", compared[0])
    assert max(map(len, done.stdout.splitlines())) <= 80
    header = done.stdout.splitlines()[1]
    shown = "algorithm G last 10 P last 10 ΔG last 10 ΔP last 10 work"
    assert " ".join(header.split()) == shown
    note = (
        "left out, to fit 80 columns: seconds, MB, P worst 10 %, G best, P best; a wider terminal"
    )
    assert note in done.stderr


def test_report_chooses_columns_of_a_table(compared):
    out = compared[0]
    good("report", out, "-o", "table.tex", "--columns", "G.last10, P.last10")
    text = Path("table.tex").read_text()
    assert r"  algorithm & G last 10 (\%) & P last 10 (\%) \\" in text.splitlines()
    assert r"\textbf" not in text  # two seeds
    said = refused(3, "report", out, "-o", "table.tex", "--columns", "G.lst10")
    assert said == "--columns: unknown name 'G.lst10'; did you mean 'G.last10'?"
    said = refused(3, "report", out, "--columns", "G.last10")
    assert said.startswith("--columns G.last10: only a table has columns to choose;")


def test_resume_of_a_comparison_prints_it(compared):
    out, found, _ = compared
    assert data("resume", out) == found


def test_compare_refuses_other_settings_in_the_same_folder(compared):
    out, _, _ = compared
    said = refused(3, "compare", "fedper", *pairs(*QUICK, "training.lr=0.5"), "--out", out)
    assert said == f"{out}/fedper-0 holds a run with other settings; choose another --out"


def test_compare_refuses_the_folder_of_a_run(finished):
    said = refused(3, "compare", "fedper", *pairs(*QUICK), "--out", finished)
    assert said == f"{finished} is a single run; choose another --out"


def test_compare_takes_the_seed_of_the_configuration():
    found = data("compare", "fedavg", *pairs(*QUICK, "seed=7"))
    assert found[0]["seeds"] == [7]
    assert Path("runs/compare-digits-1/fedavg-7").is_dir()


def test_compare_starts_from_a_file_made_for_another_algorithm():
    Path("my.toml").write_text('[algorithm]\nname = "fedprox"\nmu = 0.5\n')
    words = ["compare", "fedavg", "fedprox", "--file", "my.toml", *pairs(*QUICK)]
    assert [r["algorithm"] for r in data(*words, "--out", "mine")] == ["fedavg", "fedprox"]
    assert "mu = 0.5\n" in Path("mine/fedprox-0/config.toml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavg", "fedavgg"], "algorithm.name: unknown name 'fedavgg'; did you mean 'fedavg'?"),
        (["fedavg", "--seeds", "0,x"], "--seeds 0,x: must be whole numbers, as in 0,1,2 or 0-4"),
        (["fedavg", "--seeds", "-1"], "seed: must be at least 0, not -1"),
    ],
)
def test_compare_with_a_mistake_begins_nothing(words, said):
    assert refused(3, "compare", *words, *pairs(*QUICK)) == said
    assert list(Path().iterdir()) == []


# List -----------------------------------------------------------------------------------------


def test_list_algorithms(monkeypatch):
    found = {a["name"]: a for a in data("list", "algorithms")}
    assert list(found) == sorted(ALGORITHM_CLASSES)
    stays = {"fedper": "head.*", "local": "everything", "fedavg": "nothing"}
    assert {k: found[k]["stays"] for k in stays} == stays
    assert found["fedbn"]["stays"] == "parts of layers"
    assert found["fedprox"]["settings"][0]["name"] == "mu"
    assert all(a["paper"] and a["about"] for a in found.values())
    done = good("list", "algorithms")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "left out, to fit 80 columns: bytes up, bytes down, stays;" in done.stderr
    assert "mu = 0.001 (at least 0)" in done.stdout
    monkeypatch.setenv("COLUMNS", "120")
    table = good("list", "algorithms").stdout
    assert max(map(len, table.splitlines())) <= 120
    assert "augment = simple (or auto," in table


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("models", sorted(MODEL_DESCRIPTIONS)),
        ("datasets", [*sorted(SOURCES), "PATH.npz", "FOLDER", "hf:NAME"]),
        ("partitions", sorted(PARTITIONS)),
    ],
)
def test_the_other_lists(what, names, monkeypatch):
    monkeypatch.setenv("COLUMNS", "180")
    found = data("list", what)
    assert [r["name"] for r in found] == names
    lines = good("list", what).stdout.splitlines()
    for r in found:
        assert any(line.split("  ")[0] == r["name"] and r["about"] in line for line in lines)


def test_a_truth_value_is_listed_as_it_is_written():
    assert "balanced = true (or false)" in good("list", "partitions").stdout


def test_list_runs(copied):
    assert data("list", "runs") == []
    assert good("list", "runs").stderr == "there are no runs in runs/\n"
    shutil.copytree("mine", "runs/a")
    shutil.copytree("mine", "runs/b")
    Path("runs/b/events.jsonl").write_text("dear\n")  # must not hide the others
    new = RunFolder(Path("runs/many/c"))
    new.create("")
    new.close()
    found = {r["name"]: r for r in data("list", "runs")}
    result = json.loads(copied.result_file.read_text())
    told = [v for k in "GP" for v in (result[k]["best"], result[k]["last10"]["mean"])]
    assert {name: list(r.values()) for name, r in found.items()} == {
        "runs/a": ["runs/a", "fedavg", "finished", *told],
        "runs/b": ["runs/b", None, "damaged", *[None] * 4],
        "runs/many/c": ["runs/many/c", None, "not started", *[None] * 4],
    }
    accuracies = ["G best", "G last 10", "P best", "P last 10"]
    assert list(found["runs/a"]) == ["name", "algorithm", "state", *accuracies]
    head, rule, *lines = good("list", "runs").stdout.splitlines()
    assert {len(line) for line in lines} == {len(head)} == {len(rule)}
    shown = {line.split("  ")[0]: line.split()[-4:] for line in lines}
    assert shown["runs/a"] == [f"{100 * v:.2f}" for v in told]
    assert shown["runs/many/c"] == ["–"] * 4


# Data and report ------------------------------------------------------------------------------


def test_data_show():
    found = data("data", "show", "digits")
    assert (found["name"], found["examples"], found["shape"]) == ("digits", 1797, [1, 8, 8])
    assert sum(found["classes"].values()) == 1797
    lines = good("data", "show", "digits").stdout.splitlines()
    assert lines[0] == "digits: 1797 examples of 1×8×8 (uint8)"
    assert lines[3].split() == ["0", "178"]
    assert refused(3, "data", "show", "digit").endswith("did you mean 'digits'?")
    assert refused(3, "data", "show", "no.npz") == "data.name: cannot read no.npz: no such file"


def test_data_show_tells_the_official_split_and_the_users():
    x, y = blobs([20])[0]
    for name in ("anne", "bert"):
        np.savez(f"{name}.npz", x_train=x[:15], y_train=y[:15], x_test=x[15:], y_test=y[15:])
    found = data("data", "show", ".")
    assert (found["examples"], found["official"], found["users"]) == (40, 30, 2)
    title = good("data", "show", ".").stdout.splitlines()[0]
    told = "40 examples of 5 (float32), the first 30 to train, of 2 users"
    assert title.endswith(f"{told} · format: arrays of each client")
    said = refused(3, "data", "show", "cifar10", "--path", ".")
    assert said.startswith(
        "data.path: . does not hold cifar10: it lacks cifar-10-python.tar.gz; or"
    )


def test_data_fetch_of_what_needs_no_download_is_said():
    assert refused(3, "data", "fetch", "digits").startswith("'digits' cannot be downloaded")


def test_data_partition():
    words = ["data", "partition", *pairs("data.clients=4", "data.partition.kind=iid")]
    found = data(*words)
    assert [r["name"] for r in found] == ["0", "1", "2", "3"]
    assert sum(r["train"] + r["test"] for r in found) == 1797
    assert all(sum(r["labels"]) == r["train"] for r in found)
    title, header, _, *lines = good(*words).stdout.splitlines()
    assert title == "digits: training examples per client and class"
    measures = ["entropy", "TV", "JS"]
    assert header.split() == ["client", "train", "test", *measures, *map(str, range(10))]
    numbers = ("entropy", "total_variation", "jensen_shannon")
    assert [line.split() for line in lines] == [
        [r["name"], str(r["train"]), str(r["test"])]
        + [f"{r[k]:.2f}" for k in numbers]
        + [str(n or "·") for n in r["labels"]]
        for r in found
    ]


def test_a_saved_partition_is_dealt_again_and_lies_in_the_run_folder():
    words = ["data", "partition", *pairs("data.clients=4")]
    before = data(*words, "--save", "who.json")
    assert good(*words, "--save", "who.npz").stderr.splitlines()[0] == "wrote who.npz"
    for name in ("who.json", "who.npz"):
        again = ["data.clients=4", "seed=9", f"data.partition={{kind='file', path='{name}'}}"]
        assert data("data", "partition", *pairs(*again)) == before
    good("run", *pairs(*QUICK, *again), "--out", "mine")
    assert Path("mine/partition.json").read_bytes() == Path("who.json").read_bytes()
    said = refused(3, *words, "--save", "who.txt")
    assert said == "cannot write who.txt: a partition is a .json or an .npz file"


def test_data_partition_draws_a_picture():
    words = ["data", "partition", *pairs("data.clients=3"), "-o"]
    assert good(*words, "map.png").stderr.splitlines()[0] == "wrote map.png"
    assert Path("map.png").read_bytes().startswith(b"\x89PNG")
    said = refused(3, *words, "map.txt")
    assert said.startswith("map.txt: a figure is saved as .png, .svg, .pdf, a page as .html")


def test_data_partition_draws_each_picture_and_a_page():
    words = ["data", "partition", *pairs("data.clients=3", "algorithm.name=fedreg")]
    for kind in ("heat", "bubbles", "sizes"):
        good(*words, "--kind", kind, "-o", f"{kind}.svg")
        assert ("augmented" in Path(f"{kind}.svg").read_text()) == (kind == "sizes")
    good(*words, "-o", "page.html")
    assert "augmented copies" in Path("page.html").read_text()
    said = refused(3, *words, "--kind", "heat", "-o", "page.html")
    assert said == "page.html: a page has all charts; leave out --kind, or draw a .png"


def test_report_draws_who_took_part(finished):
    good("report", finished, "-o", "who.png", "--kind", "participation")
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")


def test_data_partition_says_which_class_nobody_trains_on():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 3)).astype(np.float32), np.tile([0, 2], 20)
    np.savez("mine.npz", x=x, y=y)
    chosen = pairs(
        "data.name=mine.npz", "data.clients=2", "data.partition.kind=iid", "data.classes=3"
    )
    said = good("data", "partition", *chosen).stderr.splitlines()
    assert said[-1] == "no client trains on class 1"


def test_report_of_runs_and_comparisons(finished, compared, copied):
    assert good("report", "mine").stderr == "wrote mine/report.html\n"
    good("report", finished, compared[0], "-o", "page.html")
    page = Path("page.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "fedper" in page
    assert refused(3, "report", "nothing").startswith("nothing does not exist; name a run folder")


# The rest -------------------------------------------------------------------------------------


def test_version_and_help():
    assert good("--version").stdout == f"heterophony {heterophony.__version__}\n"
    text = good("--help").stdout
    for command in ("run", "resume", "compare", "list", "report", "bench", "doctor", "data"):
        assert f" {command} " in text


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["run", "--frob"],
        ["list", "frobs"],
        ["resume"],
        ["data", "frob"],
        ["list"],
        ["list", "runs", "--tensors", "mlp"],
    ],
)
def test_wrong_usage_is_exit_2(words):
    done = call(*words)
    assert done.exit_code == 2
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_doctor_fails_where_something_needed_is_missing(monkeypatch, ok, code):
    parts = [
        {"name": "engine", "ok": ok, "needed": True, "about": "a word"},
        {"name": "luxury", "ok": False, "needed": False, "about": "apt-get install luxury"},
    ]
    monkeypatch.setattr("heterophony.tools.doctor.check_installation", lambda: parts)
    done = call("doctor")
    assert done.exit_code == code
    assert done.stdout.splitlines()[-1].split("  ")[-1].strip() == "apt-get install luxury"
    assert json.loads(call("doctor", "--json").stdout) == parts


# In processes of their own ----------------------------------------------------------------------

ROUNDS = (
    "rounds=60",
    "data.clients=6",
    "training.epochs=1",
    *TRAINING,
    "model.name=mlp",
    "engine.name=serial",
)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "heterophony", *map(str, words)]


def start(*words: str | Path, **how: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(*words), **pipes, **how)


def ended(process: subprocess.Popen[str] | Forked) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    out, err = process.communicate(timeout=120)
    assert out == ""
    (line,) = err.splitlines()
    return process.returncode, line


def until(process: subprocess.Popen[str] | Forked, happened: Callable[[], bool]) -> None:
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)  # polling, not waiting: the loop ends with what it looks for


def recorded(out: Path) -> int:
    events = out / "events.jsonl"
    return events.read_bytes().count(b"\n") if events.exists() else 0


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> str:
    """The hash of the run that nothing happened to."""
    out = tmp_path_factory.mktemp("cli") / "calm"
    return data("run", *pairs(*ROUNDS), "--out", out)["model_sha256"]


def test_signals_leave_a_run_that_goes_on_and_a_second_process_is_refused(calm):
    """Ctrl-C, then SIGTERM, each in the middle; meanwhile somebody else tries the same folder."""
    out = Path("mine")
    interrupted = (
        75,
        "error: interrupted; nothing is lost: continue with `heterophony resume mine`",
    )
    first = Forked("run", *pairs(*ROUNDS), "--out", out)
    until(first, lambda: recorded(out) >= 2)
    os.kill(first.pid, signal.SIGSTOP)  # it holds the folder, and cannot finish meanwhile
    busy = "mine is in use by another process; wait for it, or stop it first"
    assert refused(1, "resume", out) == busy
    os.kill(first.pid, signal.SIGCONT)
    first.send_signal(signal.SIGINT)
    assert ended(first) == interrupted
    done = recorded(out)
    second = Forked("resume", out)
    until(second, lambda: recorded(out) > done + 2)
    second.send_signal(signal.SIGTERM)
    assert ended(second) == interrupted
    assert not (out / "result.json").exists()
    assert data("resume", out)["model_sha256"] == calm


def test_a_signal_before_there_is_a_run_ends_the_command_silently():
    process = start("run", *pairs(*ROUNDS), "--out", "mine")
    maps = Path(f"/proc/{process.pid}/maps")
    until(process, lambda: "libtorch_cpu" in maps.read_text())  # torch is loading: the worst moment
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")


def test_a_full_disk_is_one_line_and_loses_nothing_committed():
    """No file may grow beyond so many bytes: the events do, after some rounds."""
    x, y = blobs([400], features=2)[0]
    np.savez("mine.npz", x=x, y=y)
    setting = pairs(
        *("data.name=mine.npz", "data.clients=20", "data.partition.kind=iid", "model.name=mlp"),
        *("rounds=30", "training.epochs=1", "training.batch=4", "engine.name=serial"),
    )
    calm = data("run", *setting, "--out", "calm")["model_sha256"]
    largest = max(p.stat().st_size for p in Path("calm/commits").rglob("*") if p.is_file())
    limit = Path("calm/events.jsonl").stat().st_size * 2 // 3
    assert largest < limit
    code, line = ended(
        Forked(
            *("run", *setting, "--out", "mine"),
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            before=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)),
        )
    )
    assert code == 74
    assert line == (
        "error: cannot use mine/events.jsonl: File too large; committed rounds are intact"
        " (make room or fix the permissions, then resume)"
    )
    reached = max(int(p.name) for p in Path("mine/commits").glob("0*"))
    assert 0 < reached < 30
    assert data("resume", "mine")["model_sha256"] == calm


def test_a_run_without_g_says_why():
    settings = pairs("rounds=1", "data.clients=4", "training.steps=1", "engine.name=serial")
    done = good("run", "fedamp", *settings, "--out", "x")
    assert "no G: FedAMP has no generic model\n" in done.stderr
    assert "personal parameters, which stay on the boards" in explain_missing_g("fedper")
    assert explain_missing_g("nowhere:Mine") == "no G: it was not measured"


def test_a_run_that_averaged_nothing_says_so():
    """The default rate selects one of four clients."""
    settings = pairs("rounds=1", "data.clients=4", "training.steps=1", "engine.name=serial")
    lone = "one of 4 clients trained in each round, so nothing was averaged"
    one = good("run", *settings, "--out", "x")
    assert "FedAvg, 1 round, seed 0" in one.stdout
    assert lone in one.stderr
    assert lone not in good("run", *settings, "-c", "rate=0.5", "--out", "y").stderr
    assert lone not in good("run", "centralized", *settings, "--out", "z").stderr
    assert lone in good("compare", "fedavg", *settings, "--out", "w").stderr
