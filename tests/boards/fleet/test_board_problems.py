"""What can be wrong with a board: one clear line each, before anything is lost."""

from __future__ import annotations

import errno
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.local_boards import LocalRunner, make_board, write_python
from heterophony.boards.fleet.board.environment import describe_os_error
from heterophony.boards.fleet.hosts import View, do_on_boards
from heterophony.boards.fleet.install import (
    Installer,
    Target,
    build_own_wheel,
    check_wheels,
    select_requirements,
)
from heterophony.boards.fleet.ssh import (
    BoardError,
    Content,
    call_board,
    explain_ssh_error,
    push_files,
)
from heterophony.boards.fleet.steps import (
    check_board,
    format_unit,
    make_board_words,
    read_facts,
    read_status,
)

DAY = 86400


def fail(work) -> str:
    with pytest.raises(BoardError) as error:
        work()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def runner(tmp_path) -> LocalRunner:
    return LocalRunner(tmp_path)


def test_a_python_that_is_too_old_or_missing_is_named(runner, tmp_path):
    old = write_python(tmp_path / "python3.6", "sys.version_info = (3, 6, 9)")
    line = fail(lambda: read_facts(runner, make_board(python=old)))
    assert line == (
        f"its Python is 3.6.9 ({old}); 3.11 or newer is needed: install one and set"
        ' python = "…" of boards.nano'
    )
    line = fail(lambda: read_facts(runner, make_board(python="/nowhere/python3")))
    assert line == "it has no Python named /nowhere/python3; install Python 3.11 or newer"
    broken = write_python(tmp_path / "broken", "raise SystemError('broken')")
    assert "SystemError: broken" in fail(lambda: read_facts(runner, make_board(python=broken)))


def test_a_wrong_clock_is_said_and_one_that_spoils_certificates_is_refused(runner, tmp_path):
    def check(seconds: int) -> str:
        python = write_python(
            tmp_path / "late", f"real = time.time; time.time = lambda: real() + {seconds}"
        )
        board = make_board(python=python)
        return check_board(board, read_facts(runner, board))

    assert check(0) == ""
    assert check(-14400) == "its clock is 4 hours behind; set it: sudo timedatectl set-ntp true"
    assert fail(lambda: check(-3 * DAY)) == (
        "its clock is 3 days behind, so certificates made today are not yet valid there; set it:"
        " sudo timedatectl set-ntp true"
    )
    assert fail(lambda: check(400 * DAY)).startswith("its clock is 400 days ahead, so certificates")


def test_a_full_disk_is_said_and_no_file_is_left_half_written(runner, tmp_path):
    # files of at most 8 blocks of 512 bytes
    small = write_python(tmp_path / "small", "pass", shell="ulimit -f 8")
    board = make_board(python=small)
    line = fail(lambda: push_files(runner, board, {"wheels/x.whl": Content(b"x" * 100_000)}))
    assert line.startswith("its disk is full")
    assert list((tmp_path / "nano/heterophony/wheels").iterdir()) == []
    huge = [{"path": "x", "size": 1 << 60, "sha256": "", "mode": 0o600}]
    request = {"files": huge, "only": [], "keep": []}
    line = fail(lambda: call_board(runner, make_board(), "receive", request))
    assert line.startswith("its disk is full: 1152921504607 MB to copy, ")
    assert describe_os_error(OSError(errno.EDQUOT, "quota", "f")) == "its disk is full (f)"


def test_what_a_board_lacks_is_one_line(runner):
    board = make_board()
    facts = read_facts(runner, board)
    assert check_board(board, facts) == ""
    wrong = {
        "its architecture is armv7l; PyTorch has wheels for x86_64 and aarch64 only": {"machine": "armv7l"},
        "its C library is glibc 2.27; today's PyTorch needs glibc 2.28": {"libc": ("glibc", "2.27")},
        "not enough disk space: only 5 MB free": {"disk_free": 5_000_000},
        "only 90 MB of memory are free; heterophony needs about 629 MB": {"memory_free": 90_000_000},
        "it cannot reach the broker at 10.0.0.1:8883; open that port": {"reaches": False},
    }  # fmt: skip
    for line, change in wrong.items():
        said = fail(lambda: check_board(board, replace(facts, **change), "10.0.0.1", 8883))  # noqa: B023
        assert said.startswith(line)
    assert fail(lambda: check_board(replace(board, accelerator="cuda"), facts)).startswith(
        "accelerator = 'cuda'"
    )


def test_wheels_of_another_architecture_are_refused_by_name(tmp_path):
    target = Target("aarch64", (3, 11), (2, 31))
    fits = ["torch-2.8.0-cp311-cp311-manylinux_2_28_aarch64.whl", "rich-15.0.0-py3-none-any.whl",
            "safetensors-0.8.0-cp310-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"]  # fmt: skip
    check_wheels([tmp_path / name for name in fits], target)
    for name in ("torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl", "numpy-2.4.6-cp312-cp312-linux_aarch64.whl",
                 "cryptography-50.0.2-cp311-abi3-manylinux_2_34_aarch64.whl"):  # fmt: skip
        line = fail(lambda: check_wheels([tmp_path / name], target))  # noqa: B023
        assert line == (
            f"{name} does not match it (aarch64, Python 3.11, glibc 2.31); delete {tmp_path} and run:"
            " fleet wheels"
        )


def test_requirements_are_those_of_the_board_not_of_this_machine():
    metadata = (
        "Requires-Dist: triton==3.4.0; platform_system == 'Linux' and platform_machine == 'x86_64'\n"
        "Requires-Dist: paho-mqtt>=2; extra == 'mqtt'\nRequires-Dist: numpy\n"
    )
    found = {
        machine: [r.name for r in select_requirements(metadata, Target(machine, (3, 11), (2, 36)), {"mqtt"})]
        for machine in ("aarch64", "x86_64")
    }  # fmt: skip
    assert found == {"aarch64": ["paho-mqtt", "numpy"], "x86_64": ["triton", "paho-mqtt", "numpy"]}


def test_wheels_that_are_missing_or_an_environment_that_is_too_old_are_named(runner, tmp_path):
    installer = Installer(tmp_path / "wheels", *build_own_wheel())
    facts = replace(read_facts(runner, make_board()), in_environment=False)
    line = fail(lambda: installer.install(runner, make_board(), facts))
    assert line.startswith(f"{tmp_path}/wheels/{facts.machine}-cp3")
    assert "has no wheel of " in line
    target = Target.from_facts(facts)
    versions = {"torch": "2.7.1", "numpy": "2.0"}
    line = fail(lambda: installer.check_environment({}, target, make_board()))
    assert "lacks torch>=2.8 (not there)" in line
    every = dict.fromkeys(("numpy", "safetensors", "typer", "rich", "scikit-learn", "scipy", "pooch", "kornia", "matplotlib", "pillow", "requests", "tomli-w", "paho-mqtt", "cryptography", "packaging"), "99")  # fmt: skip
    line = fail(lambda: installer.check_environment({**every, **versions}, target, make_board()))
    assert "lacks torch>=2.8 (version 2.7.1)" in line


def test_our_wheel_has_the_same_bytes_every_time():
    assert build_own_wheel() == build_own_wheel()


def test_files_are_copied_once_with_their_mode_and_others_deleted(runner, tmp_path):
    board, root = make_board(), tmp_path / "nano/heterophony"
    contents = {f"shares/{i}.npz": Content(bytes([i]) * 10, 0o600) for i in range(3)}
    assert push_files(runner, board, contents, only=["shares"]) == 3
    assert push_files(runner, board, contents, only=["shares"]) == 0
    assert (root / "shares/1.npz").read_bytes() == bytes([1]) * 10
    assert (root / "shares/1.npz").stat().st_mode & 0o777 == 0o600
    (root / "shares/1.npz").write_bytes(b"changed")
    del contents["shares/2.npz"]
    assert push_files(runner, board, contents, only=["shares"]) == 2
    assert sorted(p.name for p in (root / "shares").iterdir()) == ["0.npz", "1.npz"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("pi@x: Permission denied (publickey).", "ssh is refused: the board does not accept your key ("),
        ("Host key verification failed.", "ssh does not know the board's host key, or it has changed ("),
        ("ssh: connect to host x port 22: Connection refused", "no SSH server answers ("),
        ("ssh: Could not resolve hostname x: Name or service", "its host name cannot be resolved ("),
        ("banner\nsomething new\n", "ssh failed (something new)"),
        ("", "the connection broke"),
    ],
)  # fmt: skip
def test_what_ssh_says_becomes_one_line(text, line):
    assert explain_ssh_error(text).startswith(line)


def test_one_board_that_fails_does_not_stop_the_others():
    def step(board):
        if board.name == "b":
            raise BoardError("it burns")
        return "fine"

    outcome = do_on_boards("try", [make_board(n) for n in "abc"], step, View())
    assert (outcome.done, outcome.failed) == ({"a": "fine", "c": "fine"}, {"b": "it burns"})


# systemd ------------------------------------------------------------------------------------
def test_the_unit_has_the_limits_and_comes_back_after_a_failure(tmp_path, runner, monkeypatch):
    board = make_board(systemd=True, memory_mb=900, cpu_percent=50, nice=3, data="/srv/50% of it")
    words = make_board_words(board, ["0", "1"], "r")
    text = format_unit(board, words)
    assert "Nice=3\nMemoryMax=900M\nCPUQuota=50%\n" in text
    assert "Restart=on-failure\nRestartSec=10\nRestartPreventExitStatus=3\n" in text
    assert (
        "--clients 0,1 --data '/srv/50%% of it' --run r --memory-limit 900 -c engine.accelerator=cpu"
        in text
    )
    # a systemctl that writes down what it is asked; nothing is active
    called = tmp_path / "called"
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "loginctl"):
        file = tmp_path / "bin" / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\n[ "$2" != is-active ]\n')
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    request = {"unit": "heterophony-nano", "text": text}
    assert call_board(runner, board, "start-unit", request) == {"changed": True}
    unit = tmp_path / "nano/.config/systemd/user/heterophony-nano.service"
    assert f"WorkingDirectory={tmp_path}/nano/heterophony\n" in unit.read_text()
    assert call_board(runner, board, "stop-unit", request) == {"changed": True}
    assert not unit.exists()
    assert [line.split()[1:3] for line in called.read_text().splitlines()] == [
        ["--user", "daemon-reload"], ["--user", "enable"], ["--user", "restart"], ["enable-linger"],
        ["--user", "disable"],
    ]  # fmt: skip


# The process --------------------------------------------------------------------------------
def test_a_process_is_started_once_its_end_is_known_and_a_foreign_id_is_never_believed(
    runner, tmp_path
):
    board, root = make_board(), tmp_path / "nano/heterophony"
    root.mkdir(parents=True)
    assert read_status(runner, board).describe() == "never started"
    request = {"words": ["broker", "status", "missing"], "nice": 0}  # fails soon, without torch
    assert call_board(runner, board, "start", request) == {"changed": True}
    while not (root / "board.exit").exists() or not (root / "board.exit").read_text():
        time.sleep(0.05)
    status = read_status(runner, board)
    assert (status.running, status.code) == (False, 3)
    assert status.describe().startswith("exited with code 3; error: there is no broker in missing")
    # a process that happens to have the recorded id is not ours, and is left alone
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        record = {"pid": other.pid, "born": "an earlier start of the system", "words": []}
        (root / "board.pid").write_text(json.dumps(record))
        assert call_board(runner, board, "stop", {"unit": ""}) == {"changed": False}
        assert other.poll() is None
        other.kill()


def test_memory_that_a_measured_job_needs_is_said_before_it_runs_out():
    from heterophony.boards.board_data import RESERVE, MemoryGuard
    from heterophony.core.errors import ConfigError

    used, mb = [300_000_000], 1_000_000
    guard = MemoryGuard(600 * mb, 3, 90 * mb, lambda: used[0], lambda: 10_000 * mb)
    guard.begin_job("0")
    guard.end_job(420 * mb)
    assert guard.job_bytes == 120 * mb
    assert guard.count_possible_clients() == 3 + (300 * mb - 120 * mb - RESERVE) // (30 * mb)
    used[0] = 480 * mb
    with pytest.raises(ConfigError) as error:
        guard.begin_job("1")
    assert str(error.value) == (
        "too little memory for client 1: a job needs 120 MB, as measured, 120 MB are left; this"
        " board has room for 1 of its 3 clients: give it fewer, or stop other programs"
    )


def test_sensors_are_read_where_the_board_has_them(tmp_path):
    from heterophony.boards.board_data import BoardSensors

    def write(path: str, text: str) -> Path:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        return tmp_path / path

    assert set(BoardSensors(tmp_path).read()) == {"seconds", "cpu_seconds"}
    write("sys/class/thermal/thermal_zone0/temp", "41500\n")
    write("sys/class/thermal/thermal_zone1/temp", "52000\n")
    write("proc/self/status", "VmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\n")
    counter = write("sys/class/powercap/intel-rapl:0/energy_uj", "1000000\n")
    sensors = BoardSensors(tmp_path)
    counter.write_text("6000000\n")
    found = sensors.read()
    assert (found["celsius"], found["peak_bytes"], found["joules"]) == (52.0, 2 << 20, 5.0)
    counter.write_text("10\n")  # it wrapped
    assert sensors.read()["joules"] == 5.0
    counter.unlink()
    write("sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/in1_input", "5000\n")
    write("sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/curr1_input", "2000\n")
    now = [0.0]
    jetson = BoardSensors(tmp_path, clock=lambda: now[0])
    now[0] = 3.0
    assert jetson.read()["joules"] == pytest.approx(30.0)  # 10 W for 3 s
