"""Count the floating-point operations of a net, and measure the speed of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ..algorithms.fedavg import FedAvg
from ..core.accelerator import ON_CPU, Compute
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..core.temporary import temporary_folder
from ..core.training import Training
from ..data.federation import Federation
from ..data.partitioning import partition_source
from ..data.partitions import IID, Dirichlet, Partition, Terms
from ..data.source import Source
from ..engines.base import EngineSpec
from ..engines.child_processes import CONTEXT, start_fork_server
from ..engines.pool import Pool
from ..jobs.plan import Job, Plan
from ..models.convnets import convnet, mlp
from ..population.participation import Uniform
from ..runs.folder import RunFolder
from ..runs.loop import build_evaluation_jobs


def count_training_flops(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Count a net's floating-point operations to train on one example, forward and backward."""
    layers = count_forward_flops(net, shape)
    return 3 * sum(layers) - layers[0]


def count_forward_flops(net: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Count a net's forward operations on one example, layer by layer; a multiply-add counts as two."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            counts.append(2 * layer.weight[0].numel() * out[0].numel())
        elif isinstance(layer, nn.LSTM):  # every weight, at every position of the sequence
            counts.append(2 * sum(p.numel() for p in layer.parameters()) * shape[0])

    handles = [m.register_forward_hook(count) for m in net.modules()]
    text = len(shape) == 1 and any(isinstance(m, nn.Embedding) for m in net.modules())
    net.eval()  # a single example gives BatchNorm no statistics
    with torch.no_grad():
        net(torch.zeros(1, *shape, dtype=torch.long if text else torch.float))
    for handle in handles:
        handle.remove()
    return counts


def measure_sgemm_rate() -> float:
    """Measure the floating-point operations per second of a large matrix product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rates = []
    for _ in range(12):
        begun = time.perf_counter()
        torch.mm(a, b)
        rates.append(2 * 1024**3 / (time.perf_counter() - begun))
    return median(rates[2:])


BATCH = 20
REPEATS = 3


def measure_speed(
    seconds: float, say: Callable[[str], None], compute: Compute = ON_CPU
) -> dict[str, float]:
    """Measure the speed of training and its ratios; each rate is the best of several repeats.

    Workers compute on the device of ``compute``; the plain loop and sgemm always use the CPU.
    """
    samples = max(200, round(seconds * 500 / BATCH) * BATCH)
    plain, one, two, gemm = [], [], [], []
    for i in range(REPEATS):
        say(f"repeat {i + 1} of {REPEATS}: sgemm, a plain loop, one worker, two workers")
        gemm.append(run_in_subprocess(measure_sgemm_rate))
        plain.append(run_in_subprocess(partial(measure_plain_rate, samples)))
        one.append(measure_pool_rate(1, samples, compute))
        two.append(measure_pool_rate(2, samples, compute))
    say("the share of evaluation, and rounds with many idle clients")
    flops = count_training_flops(convnet((1, 28, 28), 10), (1, 28, 28))
    rates = {k: max(v) for k, v in (("p", plain), ("1", one), ("2", two), ("g", gemm))}
    return {
        "plain_samples_per_s": rates["p"],
        "one_worker_samples_per_s": rates["1"],
        "two_workers_samples_per_s": rates["2"],
        "sgemm_gflops": rates["g"] / 1e9,
        "speedup_over_plain": rates["1"] / rates["p"],
        "scaling": rates["2"] / rates["1"],
        "sgemm_fraction": rates["1"] * flops / rates["g"],
        "evaluation_share": measure_evaluation_share(compute),
        "idle_clients_cost": measure_idle_cost(compute),
    }


def run_in_subprocess(task: Callable[[], float]) -> float:
    """Run a measurement in a separate process with one thread; return its result."""
    start_fork_server()
    with ProcessPoolExecutor(
        1, CONTEXT, initializer=torch.set_num_threads, initargs=(1,)
    ) as executor:
        return executor.submit(task).result()


def measure_plain_rate(samples: int) -> float:
    """Measure the samples per second of a common training loop: DataLoader, NCHW, default SGD."""
    torch.manual_seed(0)
    x = torch.randn(samples, 1, 28, 28)
    loader = DataLoader(TensorDataset(x, torch.arange(samples) % 10), BATCH, shuffle=True)
    net = build_textbook_net()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    start = time.perf_counter()
    for epoch in range(2):
        if epoch == 1:  # the first epoch is a warm-up
            start = time.perf_counter()
        for images, labels in loader:
            optimiser.zero_grad()
            cross_entropy(net(images), labels).backward()
            optimiser.step()
    return samples / (time.perf_counter() - start)


def build_textbook_net() -> nn.Module:
    """Build the convnet as it is usually written, with ReLU before pooling."""
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(1024, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


def make_random_images(n: int) -> Source:
    """Make a data set of random images with the shape of Fashion-MNIST, to measure speed."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
    y = np.arange(n, dtype=np.int64) % 10
    return Source("random images", x, y, BYTES_TO_PLUS_MINUS_ONE, tuple("0123456789"))


@contextmanager
def open_pool(
    federation: Federation, model: Any, workers: int, epochs: int, compute: Compute
) -> Iterator[tuple[Plan, Pool]]:
    """Start a pool of workers for a federation inside the ``with`` block; yield its plan and the pool."""
    build = partial(model, federation.shape, federation.classes, 1)
    how = Training(epochs=epochs, batch=BATCH)
    plan = Plan(
        algorithm=FedAvg(),
        model=build,
        federation=federation,
        rounds=1,
        participation=Uniform(rate=1.0),
        training=how,
        evaluate_every=10**9,
    )
    with temporary_folder() as folder:
        store = RunFolder(folder / "run").client_store
        with Pool(plan, store, EngineSpec("pool", workers, compute=compute)) as engine:
            yield plan, engine


def measure_pool_rate(workers: int, samples: int, compute: Compute) -> float:
    """Measure the samples per second of the pool: two equal clients per worker, after a warm-up."""
    clients = 2 * workers
    federation = partition_source(
        make_random_images(round(samples / 2 / 0.75) * clients), IID(), Terms(clients)
    )
    with open_pool(federation, convnet, workers, 1, compute) as (plan, engine):
        list(engine.run(make_training_jobs(plan, plan.federation.clients[:workers])))
        start = time.perf_counter()
        replies = list(engine.run(make_training_jobs(plan, plan.federation.clients)))
        taken = time.perf_counter() - start
    return sum(r.samples // BATCH * BATCH for r in replies) / taken


def make_training_jobs(plan: Plan, clients: tuple[str, ...]) -> list[Job]:
    """Make a training job with the initial model for each client."""
    sizes, model = plan.federation.sizes(), plan.create_initial_server().model
    return [Job(kind="train", t=0, client=c, tensors=model, cost=sizes[c]) for c in clients]


def measure_evaluation_share(compute: Compute) -> float:
    """Measure evaluation's share of the work in a round in which 10 of 50 clients train 5 epochs.

    The data set has a fifth of Fashion-MNIST's images, so that this takes seconds.
    """
    dirichlet: Partition = Dirichlet(0.5, min_size=20)
    federation = partition_source(make_random_images(14_000), dirichlet, Terms(50))
    with open_pool(federation, convnet, 2, 5, compute) as (plan, engine):
        tests = build_evaluation_jobs(plan, plan.create_initial_server())
        jobs = [*make_training_jobs(plan, plan.federation.clients[::5]), *tests]
        list(engine.run(jobs[-4:]))
        work = {"train": 0.0, "evaluate": 0.0}
        for reply in engine.run(jobs):
            kind = "evaluate" if "P" in reply.metrics else "train"
            work[kind] += reply.metrics["seconds"]
    return work["evaluate"] / (work["train"] + work["evaluate"])


def measure_idle_cost(compute: Compute) -> float:
    """Measure a round's time with 1000 clients relative to its time with 20; ten clients train in both."""
    times = {20: list[float](), 1000: list[float]()}
    for clients, taken in times.items():
        federation = partition_source(make_random_images(clients * 40), IID(), Terms(clients))
        with open_pool(federation, mlp, 2, 20, compute) as (plan, engine):
            for _ in range(1 + REPEATS):
                jobs = make_training_jobs(plan, plan.federation.clients[:10])
                start = time.perf_counter()
                list(engine.run(jobs))
                taken.append(time.perf_counter() - start)
    return median(times[1000][1:]) / median(times[20][1:])
