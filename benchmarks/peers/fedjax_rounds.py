"""Run the rounds of ``small_jobs.py`` with FedJAX: python fedjax_rounds.py ROUNDS MODEL (mlp or digitsnet)."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from small_work import (
    BATCH,
    CLIENTS,
    EPOCHS,
    EXAMPLES,
    LR,
    PER_ROUND,
    TEST_FROM,
    TRAINED,
    make_examples,
)


def build_model(name: str, sample: dict) -> fedjax.Model:
    """Build the network that heterophony calls by this name."""

    def compute(batch):
        x = batch["x"]
        if name == "digitsnet":
            for channels in (16, 32):
                x = hk.Conv2D(channels, 3, padding="SAME")(x)
                x = jax.nn.relu(hk.max_pool(x, (2, 2, 1), (2, 2, 1), "VALID"))
            return hk.Linear(10)(jax.nn.relu(hk.Linear(64)(hk.Flatten()(x))))
        return hk.Linear(10)(jax.nn.relu(hk.Linear(100)(hk.Flatten()(x))))

    def train_loss(batch, out):
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out)

    metrics = {"accuracy": fedjax.metrics.Accuracy()}
    return fedjax.create_model_from_haiku(hk.transform(compute), sample, train_loss, metrics)


def main() -> None:
    rounds, name = int(sys.argv[1]), sys.argv[2]
    x, y = make_examples(CLIENTS, EXAMPLES)
    x = (x.astype(np.float32) / 127.5 - 1).reshape(CLIENTS, EXAMPLES, 8, 8, 1)
    y = y.astype(np.int32).reshape(CLIENTS, EXAMPLES)
    data = fedjax.InMemoryFederatedData(
        {b"%06d" % c: {"x": x[c, :TRAINED], "y": y[c, :TRAINED]} for c in range(CLIENTS)}
    )
    sample = {"x": np.zeros((1, 8, 8, 1), np.float32), "y": np.zeros((1,), np.int32)}
    model = build_model(name, sample)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=BATCH, num_epochs=EPOCHS, drop_remainder=False, seed=0
        ),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, PER_ROUND, seed=0)
    marks = []
    for _ in range(rounds + 1):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        marks.append((time.perf_counter(), time.process_time()))
    test = {"x": x[:, TEST_FROM:].reshape(-1, 8, 8, 1)}
    answers = jnp.argmax(model.apply_for_eval(state.params, test), 1)
    accuracy = float((answers == y[:, TEST_FROM:].reshape(-1)).mean())
    (seconds, cpu) = ((b - a) / rounds for a, b in zip(marks[0], marks[-1], strict=True))
    found = {"platform": f"fedjax {version('fedjax')}, jax {version('jax')}", "seconds": seconds}
    print(json.dumps({**found, "cpu": cpu, "accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main()
