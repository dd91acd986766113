"""Clients unreachable, dropped out, late or drawn twice: same bits on every engine and resume."""

from __future__ import annotations

import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heterophony as hp
from helpers.support import QUICK, Turns, digits, identical, memory, model, played, replies, same
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, DataError, FolderError
from heterophony.population.attacks import Faults, RoundEnd, check_participation
from heterophony.population.availability import Diurnal, RandomAvailability, Speeds, Trace
from heterophony.population.participation import Skewed, Uniform
from heterophony.report.page.page_data import build_page_data
from heterophony.results.comparison import compare_runs
from heterophony.results.runs import load_runs

CLIENTS = [f"c{i}" for i in range(20)]
SLOW = Speeds(sample_seconds=0.01, bytes_per_second=1e5, spread=1.0)
STORM = {"faults": Faults(availability=0.8, dropout=0.3, deadline=0.9), "speeds": SLOW}


def rounds(result):
    return [e for e in result.events if e["event"] == "round"]


# When a round ends --------------------------------------------------------------------------


def attendance(events):
    """How often each client was asked, merged, dropped and late: by round, in client order.

    Whoever was asked and is in none of the other three replied to a round without a quorum.
    """
    out: dict[str, list[list[int]]] = {k: [] for k in ("asked", "merged", "dropped", "late")}
    clients: list[str] = []
    for e in events:
        if e["event"] == "start":
            clients = e["clients"]
        elif e["event"] == "round":
            e = {"asked": e["clients"], "dropped": [], "late": [], "merged": e["clients"]} | e
            for k, rows in out.items():
                rows.append([e[k].count(c) for c in clients])
    return out


@pytest.mark.parametrize(
    ("faults", "arrivals", "closing"),
    [
        (Faults(), [3.0, 1.0, 2.0], RoundEnd(3.0, (0, 1, 2), ())),
        (Faults(), [3.0, None, 2.0], RoundEnd(3.0, (0, 2), ())),
        (Faults(), [None, None], RoundEnd(0.0, (), ())),
        (Faults(deadline=2), [1.0, 1.5], RoundEnd(1.5, (0, 1), ())),  # all replies have arrived
        (Faults(deadline=2), [3.0, 1.0, 2.0], RoundEnd(2, (1, 2), (0,))),
        (Faults(deadline=2), [None, 1.0], RoundEnd(2, (1,), ())),  # waits until the deadline
        (Faults(deadline=2), [None, None], RoundEnd(2, (), ())),
        (Faults(deadline=2), [3.0, 4.0], RoundEnd(2, (), (0, 1))),
        (Faults(deadline=2, quorum=1), [3.0, 4.0], RoundEnd(3.0, (0,), (1,))),
        (Faults(deadline=2, quorum=2), [1.0, 4.0, 3.0], RoundEnd(3.0, (0, 2), (1,))),
        (Faults(deadline=2, quorum=0.5), [1.0, 4.0, 3.0], RoundEnd(3.0, (0, 2), (1,))),
        (Faults(deadline=2, quorum=0.3), [1.0, 4.0, 3.0], RoundEnd(2, (0,), (1, 2))),
        (Faults(deadline=2, quorum=2), [1.0, None, None], RoundEnd(2, (), ())),
        (Faults(deadline=2, quorum=3), [1.0, None, 5.0], RoundEnd(5.0, (), (2,))),
        (Faults(quorum=2), [1.0, None, 5.0], RoundEnd(5.0, (0, 2), ())),
        (Faults(quorum=3), [1.0, None, 5.0], RoundEnd(5.0, (), ())),
        (Faults(quorum=1.0), [1.0, 5.0], RoundEnd(5.0, (0, 1), ())),
    ],
)
def test_a_round_closes(faults, arrivals, closing):
    assert faults.determine_round_end(arrivals) == closing


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    arrivals=st.lists(st.none() | st.floats(0, 10), min_size=1, max_size=8),
    deadline=st.none() | st.floats(0.5, 9),
    quorum=st.none() | st.integers(1, 8) | st.floats(0.1, 1.0),
)
def test_the_merged_and_the_late_are_apart_and_no_quorum_no_merge(arrivals, deadline, quorum):
    faults = Faults(deadline=deadline, quorum=quorum)
    end = faults.determine_round_end(arrivals)
    came = {i for i, a in enumerate(arrivals) if a is not None}
    assert not set(end.merged) & set(end.late)
    assert {*end.merged, *end.late} <= came
    assert not end.merged or len(end.merged) >= faults.count_needed_replies(len(arrivals))
    assert all(arrivals[i] <= end.seconds for i in end.merged)
    if end.merged:
        assert {*end.merged, *end.late} == came
        assert all(arrivals[i] > end.seconds for i in end.late)


# The clock ----------------------------------------------------------------------------------


def test_a_clients_time_is_receiving_learning_and_sending():
    devices = Speeds(sample_seconds=0.25, bytes_per_second=1000)
    assert devices.compute_round_seconds("a", 4000, 60, 2000, seed=7) == 4.0 + 15.0 + 2.0
    assert Speeds(sample_seconds=0.25).compute_round_seconds("a", 4000, 60, 2000, seed=7) == 15.0
    assert Speeds(bytes_per_second=1000).compute_round_seconds("a", 4000, 60, 2000, seed=7) == 6.0
    assert not Speeds().simulates_time


def test_devices_differ_by_a_log_normal_factor_of_median_one_drawn_once():
    devices = Speeds(sample_seconds=2.0, bytes_per_second=100.0, spread=0.5)
    speeds = [devices.get_speed(f"c{i}", seed=0) for i in range(999)]
    assert speeds == [devices.get_speed(f"c{i}", seed=0) for i in range(999)]
    assert speeds[0] != devices.get_speed("c0", seed=1)
    for values, middle in zip(zip(*speeds, strict=True), (2.0, 100.0), strict=True):
        ordered = sorted(values)
        assert abs(ordered[499] / middle - 1) < 0.1
        assert abs(ordered[839] / middle - 1.65) < 0.2  # exp(0.5), one sigma above


def test_a_file_decides_for_whom_it_names(tmp_path):
    (tmp_path / "a.csv").write_text("client,sample_seconds,bytes_per_second\nc0,0.5,10\nc1,1,\n")
    (tmp_path / "a.json").write_text(
        json.dumps({"c0": {"sample_seconds": 0.5, "bytes_per_second": 10}, "c1": [1, None]})
    )
    for name in ("a.csv", "a.json"):
        devices = Speeds(sample_seconds=7, file=str(tmp_path / name))
        devices.check_clients(CLIENTS)
        assert [devices.get_speed(c, 0) for c in CLIENTS[:3]] == [
            (0.5, 10.0),
            (1.0, inf),
            (7.0, inf),
        ]


def test_the_clock_of_a_run_is_the_sum_of_its_rounds_by_hand():
    """One epoch of full batches of 16; a round is as long as its slowest client needs."""
    devices = Speeds(sample_seconds=0.5, bytes_per_second=1000)
    result = played("fedavg", speeds=devices, participation=Turns([0, 1], [2], [3, 4]))
    sizes = list(result.plan.federation.sizes().values())
    seen = [n - n % 16 if n >= 16 else n for n in sizes]
    net = model(result).nbytes
    now = 0.0
    for e, turn in zip(rounds(result), ([0, 1], [2], [3, 4]), strict=True):
        took = max(net / 1000 + 0.5 * seen[i] + net / 1000 for i in turn)
        now += took
        assert (e["simulated_seconds"], e["clock"]) == (took, now)
        assert e["asked"] == e["clients"]
        assert (e["dropped"], e["late"], e["void"]) == ([], [], False)
    assert result.summary.simulated_seconds == now
    assert identical(result, played("fedavg", participation=Turns([0, 1], [2], [3, 4])))


# Who can be reached -------------------------------------------------------------------------


def test_chance_is_about_its_share_and_a_function_of_seed_round_and_client():
    rule = RandomAvailability(0.7)
    told = [[rule.reachable(c, t, 0.0, 5) for c in CLIENTS] for t in range(200)]
    assert abs(sum(map(sum, told)) / 4000 - 0.7) < 0.05
    assert told == [[rule.reachable(c, t, 9.0, 5) for c in CLIENTS] for t in range(200)]
    assert len({tuple(row) for row in told}) > 190


@pytest.mark.parametrize("unit", ["rounds", "seconds"])
def test_a_day_has_its_hours(unit):
    rule = Diurnal(period=10, share=0.3, unit=unit)
    for c in CLIENTS:
        told = [rule.reachable(c, t, float(t), 0) for t in range(40)]
        assert told[:10] == told[10:20] == told[20:30]
        assert sum(told[:10]) == 3
    assert len({rule.compute_time_of_day(c, 0, 0) for c in CLIENTS}) == 20
    waits = [rule.wait(c, 4.0, 0) for c in CLIENTS]
    if unit == "seconds":
        asleep = [c for c in CLIENTS if not rule.reachable(c, 0, 4.0, 0)]
        assert all(rule.reachable(c, 0, 4.001 + rule.wait(c, 4.0, 0), 0) for c in asleep)
    else:
        assert waits == [0.0] * 20


def test_a_trace_says_from_when_up_to_when(tmp_path):
    (tmp_path / "t.csv").write_text("client, start, end\nc0, 2, 4\nc0, 6,\n")
    (tmp_path / "t.json").write_text('{"c0": [[2, 4], [6, null]], "c1": []}')
    for name in ("t.csv", "t.json"):
        rule = Trace(str(tmp_path / name))
        told = [t for t in range(9) if rule.reachable("c0", t, 0.0, 0)]
        assert told == [2, 3, 6, 7, 8]
        assert rule.reachable("c2", 0, 0.0, 0)  # clients not in the file: always
    assert not rule.reachable("c1", 3, 0.0, 0)
    late = Trace(str(tmp_path / "t.json"), unit="seconds")
    assert (late.reachable("c0", 3, 0.5, 0), late.reachable("c0", 0, 3.5, 0)) == (False, True)
    assert (late.wait("c0", 0.5, 0), late.wait("c0", 4.0, 0), late.wait("c1", 0, 0)) == (
        1.5,
        2.0,
        inf,
    )


def test_only_the_reachable_are_asked_and_a_round_of_nobody_passes(tmp_path):
    clients = digits().clients
    trace = {c: [] for c in clients} | {clients[0]: [[0, 1]], clients[1]: [[0, 1], [2, 3]]}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace))
    result = played("fedavg", faults=Faults(availability=Trace(str(file))))
    assert [e["asked"] for e in rounds(result)] == [list(clients[:2]), [], [clients[1]]]
    assert [e["clients"] for e in rounds(result)] == [list(clients[:2]), [], [clients[1]]]
    assert [e["void"] for e in rounds(result)] == [False, True, False]
    assert [e["bytes_down"] > 0 for e in rounds(result)] == [True, False, True]
    assert "clock" not in rounds(result)[0]
    assert result.summary.simulated_seconds is None


def test_where_nobody_can_be_reached_the_clock_goes_on_until_somebody_can(tmp_path):
    clients = digits().clients
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({c: [[100, 200], [300, None]] for c in clients}))
    faults = Faults(availability=Trace(str(file), unit="seconds"))
    how = {"faults": faults, "speeds": Speeds(sample_seconds=10.0)}
    result = played("fedavg", rounds=4, **how)
    first, second, third, fourth = rounds(result)
    assert (first["void"], first["simulated_seconds"], first["clock"]) == (True, 100.0, 100.0)
    assert not second["void"]
    assert second["clock"] >= 200
    if second["clock"] < 300:
        assert third["void"]
        assert third["clock"] == 300.0
    assert not fourth["void"]


# Runs ---------------------------------------------------------------------------------------


def test_dropout_is_a_function_of_seed_round_and_client():
    faults = Faults(dropout=0.3)
    gone = [[faults.has_dropped_out(t, c, 1) for c in CLIENTS] for t in range(200)]
    assert abs(sum(map(sum, gone)) / 4000 - 0.3) < 0.05
    assert not any(Faults().has_dropped_out(t, c, 1) for t in range(50) for c in CLIENTS)
    assert all(Faults(dropout=1).has_dropped_out(t, c, 1) for t in range(50) for c in CLIENTS)


@pytest.mark.parametrize("name", ["fedreg", "scaffold", "fedamp", "local"])
def test_dropouts_and_stragglers_give_the_same_bits_on_the_pool_and_after_a_resume(name, tmp_path):
    class StopError(Exception):
        pass

    def stop(event):
        if event["event"] == "round" and event["t"] in (1, 3):
            raise StopError

    how = {"rounds": 6, "participation": 1.0, **STORM}
    calm, out = played(name, **how), tmp_path / "run"
    told = attendance(calm.events)
    assert all(any(map(any, told[k])) for k in ("merged", "dropped", "late"))
    assert identical(calm, played(name, engine="pool", workers=2, **how))
    for _ in range(2):
        with pytest.raises(StopError):
            played(name, out=out, resume=True, on_event=stop, **how)
    again = played(name, out=out, resume=True, **how)
    assert identical(calm, again)
    kept = ("asked", "clients", "dropped", "late", "void", "simulated_seconds", "clock")
    assert [[e[k] for k in kept] for e in rounds(calm)] == [
        [e[k] for k in kept] for e in rounds(again)
    ]


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_every_algorithm_survives_dropouts(name):
    result = played(name, rounds=2, faults=Faults(dropout=0.5), evaluate_every=2)
    if result.plan.algorithm.pooled:
        assert "asked" not in rounds(result)[0]
    else:
        gone = [c for e in rounds(result) for c in e["dropped"]]
        assert gone == [c for e in rounds(result) for c in e["asked"] if c not in e["clients"]]
        assert gone


def test_the_same_clients_are_asked_and_vanish_whatever_the_algorithm():
    faults = Faults(dropout=0.4, availability=0.7)
    told = [
        [(e["asked"], e["dropped"]) for e in rounds(played(n, faults=faults))]
        for n in ("fedavg", "fedper", "scaffold")
    ]
    assert told[0] == told[1] == told[2]
    assert not get_algorithm_class("fedavg").everybody


@pytest.mark.parametrize("name", ["fedavg", "fedper", "feddyn", "fedamp"])
def test_if_everybody_vanishes_nothing_changes_but_bytes_went_down(name):
    result = played(name, faults=Faults(dropout=1.0))
    start = result.plan.create_initial_server()
    assert same(model(result), start.model)
    assert same(result._server.average, start.average)
    assert all(memory(result, c) == {} for c in result.clients)
    assert all(r.participations == 0 for r in result.clients.values())
    assert result.summary.bytes["up"] == 0
    assert result.summary.bytes["down"] == 9 * start.model.nbytes
    assert [e["void"] for e in rounds(result)] == [True] * 3
    assert result.summary.P_local is None


def test_a_round_without_its_quorum_is_void():
    faults = Faults(dropout=0.4, quorum=1.0)
    result = played("fedavg", rounds=8, faults=faults)
    told = rounds(result)
    assert {e["void"] for e in told} == {True, False}
    for e in told:
        assert e["void"] == bool(e["dropped"])
        assert e["clients"] == ([] if e["void"] else e["asked"])
        replied = len(e["asked"]) - len(e["dropped"])
        assert e["bytes_up"] == replied * model(result).nbytes  # it arrived, but was not merged


def test_whoever_is_late_is_not_merged_but_has_learned():
    slow = Speeds(sample_seconds=1.0)
    calm = played("fedper", rounds=1, participation=1.0, speeds=slow)
    sizes = calm.plan.federation.sizes()
    seen = {c: n - n % 16 if n >= 16 else n for c, n in sizes.items()}
    limit = sorted(seen.values())[3]
    result = played("fedper", rounds=1, participation=1.0, speeds=slow,
                    faults=Faults(deadline=limit))  # fmt: skip
    (event,) = rounds(result)
    assert event["clients"] == [c for c in sizes if seen[c] <= limit]
    assert event["late"] == [c for c in sizes if seen[c] > limit] != []
    assert event["simulated_seconds"] == limit
    assert event["bytes_up"] == rounds(calm)[0]["bytes_up"]
    for c in sizes:
        kept, learned = memory(result, c), memory(calm, c)
        assert kept.keys() == learned.keys() == {"net", "momentum/main"}
        assert all(same(kept[k], learned[k]) for k in kept)
    assert not same(model(result), model(calm))


def test_merging_part_of_the_replies_is_asking_those_alone():
    """Dropped clients are not in the model: the mean is over the replies."""
    faults = Faults(dropout=0.5)
    result = played("fedavg", rounds=1, participation=1.0, faults=faults)
    (event,) = rounds(result)
    at = [list(result.clients).index(c) for c in event["clients"]]
    assert 0 < len(at) < 6
    assert same(model(result), model(played("fedavg", rounds=1, participation=Turns(at))))


# Twice in a round ---------------------------------------------------------------------------


def test_a_client_drawn_twice_trains_twice_from_the_same_model_in_another_order(monkeypatch):
    result, (both,) = replies(monkeypatch, "fedavg", rounds=1, participation=Turns([0, 1, 1]))
    first, second = both[1:]
    assert [r.turn for r in both] == [0, 0, 1]
    assert not same(first.tensors, second.tensors)
    assert first.samples == second.samples
    assert same(model(result), hp.mean(both))  # and enters the mean twice
    alone, (once,) = replies(monkeypatch, "fedavg", rounds=1, participation=Turns([0, 1]))
    assert same(once[1].tensors, first.tensors)  # the first turn is as if it were the only one
    assert [result.clients[c].participations for c in ("0", "1", "2")] == [1, 2, 0]
    assert result.summary.bytes["up"] == result.summary.bytes["down"] == 3 * model(result).nbytes
    assert len(rounds(result)[0]["P_local"]) == 3
    assert "asked" not in rounds(result)[0]
    assert alone.model_sha256 != result.model_sha256


@pytest.mark.parametrize("name", ["fedavg", "fedper", "scaffold", "fedamp", "fedpac", "fedala"])
def test_a_client_drawn_twice_gives_the_same_bits_on_the_pool_and_keeps_its_last_turn(name):
    how = {"participation": Turns([0, 0, 2, 2, 2], [1], [0, 2, 2])}
    assert identical(played(name, **how), played(name, engine="pool", workers=3, **how))


def test_of_two_turns_the_memory_of_the_last_stays(monkeypatch):
    result, (both,) = replies(monkeypatch, "fedper", rounds=1, participation=Turns([1, 1]))
    assert same(memory(result, "1")["net"], both[1].aside)
    assert not same(both[0].aside, both[1].aside)


def test_a_device_has_one_turn_after_the_other():
    devices = Speeds(sample_seconds=1.0)
    once, twice = (
        rounds(played("fedavg", rounds=1, participation=Turns(who), speeds=devices))[0]
        for who in ([3], [3, 3])
    )
    assert twice["simulated_seconds"] == 2 * once["simulated_seconds"]
    limit = Faults(deadline=1.5 * once["simulated_seconds"])
    cut = played("fedavg", rounds=1, participation=Turns([3, 3]), speeds=devices, faults=limit)
    assert (rounds(cut)[0]["clients"], rounds(cut)[0]["late"]) == (["3"], ["3"])


def test_a_skewed_run_with_replacement_is_the_same_on_both_engines():
    how = {"participation": Skewed(count=4, gamma=0.3), "rounds": 4}
    result = played("fedrep", **how)
    assert any(len(set(e["clients"])) < 4 for e in rounds(result))
    assert identical(result, played("fedrep", engine="pool", workers=2, **how))


def test_tables_and_the_page_show_the_simulated_clock_where_there_is_one(tmp_path):
    played("fedavg", out=tmp_path / "timed", speeds=SLOW)
    played("fedavg", out=tmp_path / "plain")
    both = load_runs([tmp_path / "timed", tmp_path / "plain"])
    timed, plain = (row.to_dict() for row in compare_runs(both))
    assert timed["simulated"] == both[0].summary.simulated_seconds > 0
    assert "simulated" not in plain
    assert build_page_data(both)["table"]["columns"][-1] == "simulated"
    assert build_page_data(both)["table"]["rows"][1]["cells"][-1] == "–"
    assert "simulated" not in build_page_data(both[1:])["table"]["columns"]


# Without faults, and what is refused --------------------------------------------------------


def test_without_faults_a_round_is_recorded_as_ever():
    result, named = played("fedavg"), played("fedavg", faults=Faults(), speeds=Speeds())
    keys = ["event", "t", "clients", "bytes_down", "bytes_up", "examples", "fedavg_examples"]
    keys += ["loss", "measures", "P_local"]
    assert [list(e) for e in rounds(result)] == [[*keys, "work", "seconds"]] * 3
    assert identical(result, named)
    assert "files" not in result.events[0]
    assert attendance(result.events)["merged"] == attendance(result.events)["asked"]


def test_attendance_is_by_round_and_client():
    start = {"event": "start", "clients": ["a", "b", "c"]}
    faulty = {"asked": ["a", "b", "b", "c"], "dropped": ["a"], "late": ["b"]}
    told = [
        start,
        {"event": "round", "clients": ["b", "c"], **faulty},
        {"event": "round", "clients": ["a"]},
    ]
    assert attendance(told) == {
        "asked": [[1, 2, 1], [1, 0, 0]],
        "merged": [[0, 1, 1], [1, 0, 0]],
        "dropped": [[1, 0, 0], [0, 0, 0]],
        "late": [[0, 1, 0], [0, 0, 0]],
    }


@pytest.mark.parametrize(
    ("faults", "devices", "said"),
    [
        (Faults(deadline=3), Speeds(), "participation.deadline: needs simulated time"),
        (
            Faults(quorum=6),
            Speeds(),
            "quorum: 6 replies are needed, but only 5 clients are selected",
        ),
        (
            Faults(availability=Diurnal(unit="seconds")),
            Speeds(),
            "participation.availability.unit: needs simulated time",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(faults, devices, said):
    with pytest.raises(ConfigError, match=said):
        check_participation(faults, devices, Uniform(count=5), CLIENTS)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.json", "{", "is not JSON"),
        ("t.json", "[1]", "must be an object with an entry for each client"),
        ("t.json", '{"c0": [[1, 2, 3]]}', "client c0 needs rows of start, end"),
        ("t.json", '{"c0": [[-1, 3]]}', "client c0 needs rows of start, end"),
        ("t.json", '{"c0": 5}', "client c0 needs rows of start, end"),
        ("t.json", '{"c0": "12"}', "client c0 needs rows of start, end"),
        ("t.json", f'{{"c0": [[0, 1{"0" * 400}]]}}', "client c0 needs rows of start, end"),
        ("t.json", "[" * 200_000, "is not JSON"),
        ("t.json", '{"c0": [[5, 2]]}', "client c0 has an interval that ends before it starts"),
        ("t.json", '{"c0": [[null, null]]}', "client c0 has an interval .* never starts"),
        ("t.csv", f"client,start,end\nc0,1,{'2' * 200_000}\n", "is not CSV: field larger"),
        ("t.json", '{"x9": [[1, 3]]}', "there is no client 'x9'"),
        ("t.csv", "client,start\nc0,1\n", "its first line does not have the column 'end'"),
        ("t.csv", "client,start,end\nc0,1,soon\n", "client c0 needs rows of start, end"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused_with_its_name(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said) as told:
        Trace(str(tmp_path / name)).know(CLIENTS)
    assert name in str(told.value)
    with pytest.raises(DataError, match=r"cannot read nowhere\.csv"):
        Trace("nowhere.csv").know(CLIENTS)


@pytest.mark.parametrize("row", ["c0,,5", "c0,1,0", "c0,1,5\nc0,2,5"])
def test_a_device_has_one_row_of_sensible_numbers(tmp_path, row):
    (tmp_path / "d.csv").write_text(f"client,sample_seconds,bytes_per_second\n{row}\n")
    with pytest.raises(DataError, match="client c0 needs one row of sample_seconds"):
        Speeds(file=str(tmp_path / "d.csv")).check_clients(CLIENTS)


def test_a_run_does_not_go_on_with_another_trace(tmp_path):
    file, out = tmp_path / "trace.json", tmp_path / "run"
    file.write_text('{"0": [[0, 9]]}')
    how = {"faults": Faults(availability=Trace(str(file))), "out": out, "resume": True}
    played("fedavg", **how)
    file.write_text('{"0": [[0, 8]]}')
    with pytest.raises(FolderError, match=r"trace.json has changed since the run was started"):
        played("fedavg", **how)


# In a configuration -------------------------------------------------------------------------

WHOLE = """
[participation]
count = 10
skew = { gamma = 0.5 }
replacement = false
availability = { kind = "diurnal", period = 12, share = 0.25 }
dropout = 0.3
deadline = 60
quorum = 0.5

[speeds]
sample_seconds = 0.01
bytes_per_second = 1e6
spread = 0.5
"""


def test_a_configuration_says_all_of_it_and_is_written_back_whole(tmp_path):
    (tmp_path / "my.toml").write_text(WHOLE)
    config = read_config(
        tmp_path / "my.toml", ["engine.accelerator=cpu"]
    )  # auto is written as what it is
    assert config.participation == Skewed(count=10, gamma=0.5, replacement=False)
    assert config.faults == Faults(Diurnal(period=12, share=0.25), 0.3, 60, 0.5)
    assert config.speeds == Speeds(0.01, 1e6, 0.5)
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert read_config(tmp_path / "again.toml") == config


@pytest.mark.parametrize(
    ("pair", "found"),
    [
        ("participation.availability=0.7", Faults(availability=0.7)),
        ("participation.dropout=0.2", Faults(dropout=0.2)),
        ("participation.quorum=3", Faults(quorum=3)),
        ("participation.availability.file=x.csv", Faults(availability=Trace("x.csv"))),
    ],
)
def test_each_of_them_leaves_the_others_as_they_are(pair, found):
    config = read_config(None, [pair])
    assert (config.participation, config.faults) == (Uniform(rate=0.2), found)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("participation.dropuot=1", "participation.dropuot: unknown key; did you mean 'dropout'?"),
        ("participation.dropout=2", "participation.dropout: must be at least 0 and at most 1"),
        ("participation.deadline=0", "participation.deadline: must be above 0, not 0"),
        (
            "participation.quorum=1.5",
            "participation.quorum: must be a fraction of at most 1 or a whole",
        ),
        ("participation.skew=0.1", "participation.skew: must be a table, as in { gamma = 0.1 }"),
        ("participation.skew.gamma=0", "participation.skew.gamma: must be above 0, not 0"),
        (
            "participation.skew.gama=1",
            "participation.skew.gama: unknown key; did you mean 'gamma'?",
        ),
        (
            "participation.availability.kind=dirunal",
            "participation.availability.kind: unknown name 'dirunal'",
        ),
        ("participation.availability.kind=trace", "participation.availability.file: missing"),
        (
            "speeds.spread=1",
            "speeds.spread: has no effect unless sample_seconds or bytes_per_second is set",
        ),
        (
            "participation.availability=often",
            "participation.availability: must be a number, or a table as in { kind = 'diurnal' }",
        ),
        ("speeds.spread=1e9", "speeds.spread: must be at least 0 and at most 10, not 1"),
        (
            "speeds.sample_seconds=-1",
            "speeds.sample_seconds: must be at least 0 and at most 1e+06, not -1",
        ),
        (
            "speeds.sample_seconds=1e308",
            "speeds.sample_seconds: must be at least 0 and at most 1e+06, not 1e+308",
        ),
        (
            "speeds.bytes_per_second=1e-300",
            "speeds.bytes_per_second: must be at least 1e-06, not 1e-300",
        ),
    ],
)
def test_a_wrong_setting_is_named(pair, said):
    with pytest.raises(ConfigError) as told:
        read_config(None, [pair])
    assert str(told.value).startswith(said)


def test_the_library_takes_a_rule_of_ones_own_for_who_can_be_reached(tmp_path):
    class Even(hp.Availability):
        def reachable(self, client, t, now, seed):
            return (int(client) + t) % 2 == 0

    how = {"faults": Faults(availability=Even()), "participation": 1.0, "out": tmp_path / "run"}
    result = played("fedavg", training=QUICK, **how)
    even, odd = ["0", "2", "4"], ["1", "3", "5"]
    assert [e["clients"] for e in rounds(result)] == [even, odd, even]
    assert 'participation = "Even"' in (tmp_path / "run" / "config.toml").read_text()
