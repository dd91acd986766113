"""Measure five rounds of FedAvg on Fashion-MNIST: heterophony, and hand-written loops with two processes.

    python benchmarks/five_rounds.py [--repeats 2] [--rounds 5] [--json FILE]

Fashion-MNIST (training and test set merged), 20 clients, Dirichlet 0.1, split 75/25; 4 fixed
clients per round, 5 epochs, batch 20, SGD 0.01; the generic model is tested on all 20 test sets in
every round. Three systems take turns: heterophony's pool with two workers; a hand-written loop of
two processes with the same kernels (channels_last, fused SGD, pooling before ReLU, memory kept by
malloc); and one with plain kernels. Time is that of the rounds; memory is the peak proportional
share of the process tree.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import heterophony as hp
from heterophony.engines.child_processes import configure_torch, start_fork_server

CLIENTS, PER_ROUND, EPOCHS, BATCH, LR = 20, 4, 5, 20, 0.01
CONTEXT = multiprocessing.get_context("forkserver")


class FixedParticipation:
    """Selects clients 4r … 4r+3, modulo 20, in round r."""

    def chosen(self, t: int, clients: tuple[str, ...], seed: int) -> list[str]:
        return sorted(get_cohort(t), key=int)


def get_cohort(t: int) -> list[str]:
    return [str((PER_ROUND * t + i) % CLIENTS) for i in range(PER_ROUND)]


def build_network(pool_first: bool) -> hp.Net:
    """Build a net: conv 5×5 1→32, conv 5×5 32→64, linear 1024→512→10."""

    def make_activation() -> list[nn.Module]:
        return [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]

    base = nn.Sequential(
        *(nn.Conv2d(1, 32, 5), *make_activation(), nn.Conv2d(32, 64, 5), *make_activation()),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU()),
    )
    return hp.Net(base, nn.Linear(512, 10))


def build_fast_network() -> hp.Net:
    return build_network(pool_first=True)


# Ours ---------------------------------------------------------------------------------------


def run_ours(federation: hp.Federation, rounds: int) -> dict[str, float]:
    marks: dict[str, float] = {}
    start = time.perf_counter()

    def note_time(event: dict) -> None:
        marks[event["event"]] = time.perf_counter()
        marks.setdefault("first", marks[event["event"]])

    result = hp.run(
        "fedavg",
        federation,
        model=build_fast_network,
        rounds=rounds,
        participation=FixedParticipation(),
        training=hp.Training(epochs=EPOCHS, batch=BATCH, lr=LR, momentum=0.0),
        engine="pool",
        workers=2,
        on_event=note_time,
    )
    seconds = marks["end"] - marks["first"]
    return {"seconds": seconds, "start": marks["first"] - start, "G": result.G.last}


# By hand ------------------------------------------------------------------------------------


def run_by_hand(federation: hp.Federation, rounds: int, fast: bool) -> dict[str, float]:
    """Use two processes, a queue of clients (longest first), and weights in shared memory."""
    start = time.perf_counter()
    net = build_network(fast)
    flat = nn.utils.parameters_to_vector(net.parameters()).detach().share_memory_()
    replies = torch.zeros(PER_ROUND, len(flat)).share_memory_()
    shared = [federation.x.share_memory_(), federation.y.share_memory_()]
    rows = {c: (federation.train[c], federation.test[c]) for c in federation.clients}
    tasks, answers = CONTEXT.SimpleQueue(), CONTEXT.SimpleQueue()
    workers = [
        CONTEXT.Process(
            target=run_hand_worker, args=(tasks, answers, fast, flat, replies, shared, rows)
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        answers.get()
    started = time.perf_counter()
    right = 0
    for t in range(rounds):
        chosen = sorted(get_cohort(t), key=lambda c: -len(rows[c][0]))
        for slot, client in enumerate(chosen):
            tasks.put(("train", client, slot))
        for _ in chosen:
            answers.get()
        sizes = torch.tensor([len(rows[c][0]) for c in chosen], dtype=torch.float64)
        flat.copy_((sizes / sizes.sum()) @ replies.double())
        for client in sorted(rows, key=lambda c: -len(rows[c][1])):
            tasks.put(("test", client, 0))
        right = sum(answers.get() for _ in rows)
    seconds = time.perf_counter() - started
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()
    tested = sum(len(test) for _, test in rows.values())
    return {"seconds": seconds, "start": started - start, "G": right / tested}


def run_hand_worker(tasks, answers, fast, flat, replies, shared, rows) -> None:
    configure_torch() if fast else torch.set_num_threads(1)
    x, y = shared
    net = build_network(fast)
    if fast:
        net = net.to(memory_format=torch.channels_last)
    answers.put(None)
    while (task := tasks.get()) is not None:
        kind, client, slot = task
        load_weights(net, flat)
        train, test = rows[client]
        if kind == "train":
            train_by_hand(net, x, y, train, fast)
            replies[slot] = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
            answers.put(None)
        else:
            answers.put(test_by_hand(net, x, y, test, fast))


@torch.no_grad()
def load_weights(net, flat) -> None:
    at = 0
    for p in net.parameters():
        p.copy_(flat[at : at + p.numel()].view(p.shape))
        at += p.numel()


def make_batch(x, y, rows, fast):
    images = x[rows].float().mul_(1 / 127.5).sub_(1)
    if fast:
        images = images.contiguous(memory_format=torch.channels_last)
    return images, y[rows]


def train_by_hand(net, x, y, rows, fast) -> None:
    options = {"fused": True} if fast else {}
    optimiser = torch.optim.SGD(net.parameters(), lr=LR, **options)
    whole = len(rows) - len(rows) % BATCH if len(rows) >= BATCH else len(rows)
    for _ in range(EPOCHS):
        for at in torch.randperm(len(rows))[:whole].split(BATCH):
            images, labels = make_batch(x, y, rows[at], fast)
            optimiser.zero_grad()
            cross_entropy(net(images), labels).backward()
            optimiser.step()


def test_by_hand(net, x, y, rows, fast) -> int:
    right = 0
    with torch.inference_mode():
        for at in rows.split(1000):
            images, labels = make_batch(x, y, at, fast)
            right += int((net(images).argmax(1) == labels).sum())
    return right


# Together -----------------------------------------------------------------------------------


def measure_peak_memory(task: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Run the task; add the peak memory of the whole process tree to its numbers."""
    peak, over = [0], threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.5):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        numbers = task()
    finally:
        over.set()
        thread.join()
    return {**numbers, "peak_mb": peak[0] / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start_fork_server()
    federation = hp.federate("fmnist", clients=CLIENTS, partition=hp.Dirichlet(0.1), seed=0)
    sizes = federation.sizes()
    samples = sum(
        sizes[c] // BATCH * BATCH * EPOCHS for t in range(options.rounds) for c in get_cohort(t)
    )
    print(f"{samples} training samples in {options.rounds} rounds")
    systems = {
        "heterophony": lambda: run_ours(federation, options.rounds),
        "same kernels": lambda: run_by_hand(federation, options.rounds, fast=True),
        "plain kernels": lambda: run_by_hand(federation, options.rounds, fast=False),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(options.repeats):
        for name, system in systems.items():
            found[name].append(measure_peak_memory(system))
            print(name, {k: round(v, 3) for k, v in found[name][-1].items()}, flush=True)
    best = {name: min(r["seconds"] for r in runs) for name, runs in found.items()}
    ratios = {
        "over same kernels": best["heterophony"] / best["same kernels"],
        "speedup over plain kernels": best["plain kernels"] / best["heterophony"],
    }
    print({k: round(v, 3) for k, v in ratios.items()})
    if options.json:
        about = {"machine": platform.machine(), "torch": torch.__version__, "samples": samples}
        options.json.write_text(json.dumps({**about, "runs": found, **ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
