"""Measure the gain from ``engine.fast``: run this code, an earlier version and FedJAX in turn, on idle cores.

python benchmarks/fast.py --before PATH/TO/src [--fedjax VENV] [--parts mlp digitsnet evaluated last start demo]

Prints one JSON object; all parts take about eight minutes on two idle cores.

``mlp``, ``digitsnet``: rounds of training of ``small_jobs.py``. ``evaluated``: the same with an evaluation of
all clients in every round. ``last``: the last evaluation of 100,000 clients, and the peak memory of the run.
``start``: ``heterophony run fedavg -c rounds=1``. ``demo``: the three commands of ``make demo``. ``seconds`` are
wall time, by round in the first three; ``cpu`` are the CPU seconds of all processes together. ``before ÷ now``
and ``fedjax ÷ now`` compare medians.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import small_jobs

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36
REPEATS = {"mlp": 3, "digitsnet": 2, "evaluated": 2, "last": 1, "start": 5, "demo": 1}
ROUNDS = {"mlp": 40, "digitsnet": 10, "evaluated": 8}
DEMO = (  # as in the Makefile
    "compare fedavg fedper fedrod fedreg --file {settings} --seeds 0-2 --out demo",
    "report demo -o demo/curves.png",
    "report demo",
)
Numbers = dict[str, Any]


def run_commands(source: Path, *commands: str) -> Numbers:
    """Run commands of heterophony one after the other, in an empty folder."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with TemporaryDirectory() as folder:
        for words in commands:
            subprocess.run(
                [sys.executable, "-m", "heterophony", *words.split()],
                env={**os.environ, "PYTHONPATH": str(source)},
                cwd=folder,
                check=True,
                capture_output=True,
            )
        seconds = time.perf_counter() - begun
        wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "cpu": sum(after[:2]) - sum(before[:2])}


def wait_for_orphans() -> None:
    """Wait for fork servers that outlive their command; their CPU seconds count too."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def run_demo(source: Path) -> Numbers:
    """Run what ``make demo`` runs."""
    text = (ROOT / "examples" / "demo.toml").read_text()
    keys = source / "heterophony" / "config" / "keys.py"
    if not keys.exists() or '"local": "training"' not in keys.read_text():
        text = text.replace("[training]", "[local]")  # the earlier name of this section
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "demo.toml"
        settings.write_text(text)
        return run_commands(source, *(words.format(settings=settings) for words in DEMO))


def evaluate_last() -> Numbers:
    """Run one round with 100,000 clients of two examples, and time the evaluation after it."""
    import heterophony as hp

    data = small_jobs.make_examples(100_000, 2)
    marks = dict[str, float]()
    result = hp.run(
        "fedavg",
        hp.federate(data, clients=100_000, partition=hp.IID()),
        model="mlp",
        rounds=1,
        participation=20,
        training=hp.Training(epochs=1, batch=2, lr=0.1, momentum=0.0),
        evaluate_every=2,
        engine="pool",
        workers=2,
        progress=False,
        on_event=lambda event: marks.setdefault(event["event"], time.perf_counter()),
    )
    return {"seconds": marks["end"] - marks["round"], "sha256": result.model_sha256}


def evaluate_last_elsewhere(source: Path) -> Numbers:
    """Time the last evaluation in a new process with the code in ``source``; measure its memory."""
    command = [sys.executable, Path(__file__).with_name("memory.py")]
    out = subprocess.run(
        [*command, sys.executable, __file__, "--last"],
        env={**os.environ, "PYTHONPATH": str(source)},
        check=True,
        capture_output=True,
        text=True,
    )
    peak = next(line for line in out.stderr.splitlines() if line.startswith("peak "))
    return {**json.loads(out.stdout), "peak_mb": int(peak.split()[1])}


def list_systems(part: str, before: Path, fedjax: Path | None) -> dict[str, Callable[[], Numbers]]:
    """List the systems that a part compares, by name."""
    sources = {"now": ROOT / "src", "before": before}
    if part in ("start", "demo", "last"):
        run: Callable[[Path], Numbers] = {
            "start": lambda source: run_commands(source, "run fedavg -c rounds=1"),
            "demo": run_demo,
            "last": evaluate_last_elsewhere,
        }[part]
        return {name: lambda source=source: run(source) for name, source in sources.items()}
    model, case = ("mlp", "evaluated") if part == "evaluated" else (part, "training")
    options = argparse.Namespace(model=model, workers=2, rounds=ROUNDS[part], momentum=0.0)
    systems: dict[str, Callable[[], Numbers]] = {
        name: lambda source=source: small_jobs.run_elsewhere(source, case, options, [])
        for name, source in sources.items()
    }
    if fedjax is not None and case == "training":
        systems["fedjax"] = lambda: small_jobs.run_peer("fedjax", fedjax, options)
    return systems


def measure_part(part: str, before: Path, fedjax: Path | None) -> Numbers:
    """Run the systems of a part in turn; summarise the repeats of each."""
    systems = list_systems(part, before, fedjax)
    runs: dict[str, list[Numbers]] = {name: [] for name in systems}
    for _ in range(REPEATS[part]):
        for name, system in systems.items():
            runs[name].append(system())
    out = Numbers()
    for name, repeats in runs.items():
        keys = [k for k in ("seconds", "cpu", "peak_mb") if k in repeats[0]]
        out[name] = {k: [round(r[k], 4) for r in repeats] for k in keys}
    for name in [n for n in runs if n != "now"]:
        ratio = median(out[name]["seconds"]) / median(out["now"]["seconds"])
        out[f"{name} ÷ now"] = round(ratio, 2)
    bits = {r["sha256"] for repeats in runs.values() for r in repeats if "sha256" in r}
    return {**out, "same_bits": len(bits) == 1} if bits else out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, help="the folder src of the code to compare with")
    parser.add_argument("--fedjax", type=Path, help="a virtual environment with fedjax")
    parser.add_argument("--parts", nargs="*", choices=list(REPEATS), default=list(REPEATS))
    parser.add_argument("--last", action="store_true", help="run the part last in this process")
    options = parser.parse_args()
    if options.last:
        print(json.dumps(evaluate_last()))
        return
    if options.before is None:
        parser.error("--before is missing")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    found = {}
    for part in options.parts:
        begun = time.perf_counter()
        found[part] = measure_part(part, options.before.resolve(), options.fedjax)
        print(part, f"{time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
