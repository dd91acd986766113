"""Measure rounds with many small clients: with this code, an earlier version and other platforms in turn.

python benchmarks/small_jobs.py [--before PATH/TO/src] [--flower VENV] [--pfl VENV]
                                [--fedjax VENV] [--off] [--repeats 3] [--workers 2] [--rounds 20]

Prints one JSON object. ``training`` and ``evaluated`` are rounds of 50 clients out of 1,000 with 50
examples each, without and with an evaluation of all clients in every round; ``first`` is the time
until the end of the first round with 10,000 clients of 12 examples. ``seconds`` are wall time, ``cpu``
the seconds of all processes together, which other work on the machine disturbs less. ``--flower``,
``--pfl`` and ``--fedjax`` name virtual environments with these platforms, which do the work of ``training``.
``--off`` also measures this code with ``engine.fast = "off"``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

PEERS = Path(__file__).parent / "peers"
sys.path.append(str(PEERS))
from small_work import BATCH, CLIENTS, EPOCHS, EXAMPLES, LR, PER_ROUND, make_examples  # noqa: E402

CASES = ("training", "evaluated", "first")
Measurement = dict[str, float]


def measure_cpu() -> float:
    """Return the CPU seconds of this process, the fork server and the workers so far."""
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def run_case(
    case: str, model: str, workers: int, rounds: int, momentum: float, **how: str
) -> dict[str, Any]:
    """Run one case in this process, and return seconds and CPU seconds, by round where there are many."""
    import heterophony as hp

    small = (CLIENTS, EXAMPLES, PER_ROUND)
    clients, examples, count = (10_000, 12, 100) if case == "first" else small
    data = make_examples(clients, examples)
    federation = hp.federate(data, clients=clients, partition=hp.IID())
    marks, ends = [(time.perf_counter(), measure_cpu())], (0, 0 if case == "first" else rounds)

    def mark_round(event: Any) -> None:
        if event["event"] == "round" and event["t"] in ends:
            marks.append((time.perf_counter(), measure_cpu()))

    result = hp.run(
        "fedavg",
        federation,
        model=model,
        rounds=1 if case == "first" else rounds + 1,
        participation=count,
        training=hp.Training(epochs=EPOCHS, batch=BATCH, lr=LR, momentum=momentum),
        evaluate_every=1 if case != "training" else rounds + 2,
        engine="pool",
        workers=workers,
        on_event=mark_round,
        **how,
    )
    # rounds are counted from the end of the first, in which workers start and all clients are evaluated
    first, last, number = (
        (marks[0], marks[1], 1) if case == "first" else (marks[1], marks[-1], rounds)
    )
    seconds, cpu = ((b - a) / number for a, b in zip(first, last, strict=True))
    accuracy = result.G.last if result.G else None
    return {"seconds": seconds, "cpu": cpu, "accuracy": accuracy, "sha256": result.model_sha256}


def run_elsewhere(
    source: Path, case: str, options: argparse.Namespace, fast: list[str]
) -> dict[str, Any]:
    """Run one case in a new process with the code in ``source``."""
    how = [*fast, "--case", case, "--model", options.model, "--workers", str(options.workers)]
    how += ["--rounds", str(options.rounds), "--momentum", str(options.momentum)]
    out = subprocess.run(
        [sys.executable, __file__, *how],
        env={**os.environ, "PYTHONPATH": str(source)},
        check=True,
        capture_output=True,
        text=True,
    )
    measured: dict[str, Any] = json.loads(out.stdout)
    return measured


def compare_codes(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases with each version of the code and each platform in turn."""
    codes = {"now": Path(__file__).parents[1] / "src"}
    if options.off:
        codes["off"] = codes["now"]
    if options.before:
        codes = {"before": Path(options.before), **codes}
    peers = {"flower": options.flower, "pfl": options.pfl, "fedjax": options.fedjax}
    peers = {name: venv for name, venv in peers.items() if venv}
    report: dict[str, Any] = {"model": options.model, "workers": options.workers}
    for case in options.cases:
        runs: dict[str, list[dict[str, Any]]] = {code: [] for code in codes}
        for _ in range(options.repeats):
            for code, source in codes.items():
                how = ["--fast", "off"] if code == "off" else []
                runs[code].append(run_elsewhere(source, case, options, how))
            for name, venv in peers.items() if case == "training" else ():
                runs.setdefault(name, []).append(run_peer(name, Path(venv), options))
        report[case] = summarise_case(runs)
    return report


def run_peer(name: str, venv: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Let another platform do the work of ``training``, with the same number of worker processes."""
    rounds, workers = str(options.rounds), str(options.workers)
    command = {
        "flower": [venv / "bin" / "python", PEERS / "flower_rounds.py", rounds, workers],
        "pfl": [
            *(venv / "bin" / "torchrun", f"--nproc_per_node={workers}"),
            *(PEERS / "pfl_rounds.py", rounds),
        ],
        "fedjax": [venv / "bin" / "python", PEERS / "fedjax_rounds.py", rounds, options.model],
    }[name]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    (line,) = [text for text in out.stdout.splitlines() if text.startswith('{"platform"')]
    measured: dict[str, Any] = json.loads(line)
    return measured


def summarise_case(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Reduce the repeats to minimum and median, and to the factor by which this code is faster."""
    out: dict[str, Any] = {}
    for name, repeats in runs.items():
        out[name] = {"accuracy": repeats[-1]["accuracy"]}
        out[name] |= {"platform": repeats[-1]["platform"]} if "platform" in repeats[-1] else {}
        for key in ("seconds", "cpu"):
            values = [r[key] for r in repeats if key in r]
            if values:
                out[name][key] = {"min": min(values), "median": statistics.median(values)}
    for name in [n for n in out if n != "now"]:
        keys = [k for k in ("seconds", "cpu") if k in out[name]]
        ratios = {k: out[name][k]["min"] / out["now"][k]["min"] for k in keys}
        out[name]["times_ours"] = ratios
    bits = {r["sha256"] for repeats in runs.values() for r in repeats if "sha256" in r}
    return {**out, "same_bits": len(bits) == 1}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", help="the folder src of the code to compare with")
    parser.add_argument("--flower", help="a virtual environment with flwr[simulation] and torch")
    parser.add_argument("--pfl", help="a virtual environment with pfl and torch")
    parser.add_argument("--fedjax", help="a virtual environment with fedjax")
    parser.add_argument("--off", action="store_true", help="also measure engine.fast = off")
    parser.add_argument("--fast", choices=("auto", "off"), help="engine.fast, with --case")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--case", choices=CASES, help="run one case in this process")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--momentum", type=float, default=0.0)
    for name, default in (("repeats", 3), ("workers", 2), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.case:
        # earlier versions have no such option
        fast = {"fast": options.fast} if options.fast else {}
        how = (options.model, options.workers, options.rounds, options.momentum)
        print(json.dumps(run_case(options.case, *how, **fast)))
    else:
        print(json.dumps(compare_codes(options), indent=2))


if __name__ == "__main__":
    main()
