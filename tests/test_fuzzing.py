"""Decoders raise their documented errors and no others; `scripts/fuzz` tries more inputs."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import fuzz_targets
from helpers.fuzz_targets import TARGETS

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "fuzz"))
EXAMPLES = {"events": 60, "commits": 60, "config": 60}  # they are files; others have more
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_withstands_changed_inputs(name):
    target = TARGETS[name]()

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES.get(name, 150),
        suppress_health_check=SLOW,
    )
    @given(st.randoms(use_true_random=False))
    def check(draw):
        target.check(target.draw_input(draw))

    check()
    for content in target.valid:
        target.check(content)
        target.check(target.seal(content))


def test_a_find_is_kept_and_ends_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def check(content: bytes) -> None:
        assert b"ctl" not in content

    broken = replace(TARGETS["chunks"](), check=check, valid=[b"a control", b"a ctl"])
    monkeypatch.setitem(fuzz_targets.TARGETS, "chunks", lambda: broken)
    with pytest.raises(SystemExit) as ended:
        SCRIPT["main"](["chunks", "--seconds", "60"])
    assert ended.value.code == 1
    (kept,) = tmp_path.iterdir()
    assert b"ctl" in kept.read_bytes()
    number = kept.name.removeprefix("fuzz-chunks-0-")
    said = capsys.readouterr().out
    assert f"chunks: input {number} of seed 0 breaks the decoder; it is in {kept.name}" in said


def test_the_command_counts_the_inputs(capsys):
    assert SCRIPT["main"](["safetensors", "--seconds", "0.2"]) == 0
    assert capsys.readouterr().out.endswith(" inputs in 0.2 s, none broke the decoder\n")
