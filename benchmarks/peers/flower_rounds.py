"""Run the rounds of ``small_jobs.py`` with Flower's simulation: python flower_rounds.py ROUNDS WORKERS."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared_work import build_net, read_examples, report
from small_work import BATCH, CLIENTS, EPOCHS, LR, PER_ROUND, TRAINED
from torch.nn.functional import cross_entropy

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    x, y = read_examples().get_training_examples(int(context.node_config["partition-id"]))
    net = build_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for at in torch.randperm(TRAINED).split(BATCH):
            optimiser.zero_grad()
            cross_entropy(net(x[at]), y[at]).backward()
            optimiser.step()
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": TRAINED}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class MarkedFedAvg(FedAvg):
    """FedAvg that notes when each round ends."""

    def __init__(self, **how) -> None:
        super().__init__(**how)
        self.marks: list[float] = []

    def aggregate_train(self, server_round, replies):
        merged = super().aggregate_train(server_round, replies)
        self.marks.append(time.perf_counter())
        return merged


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    net = build_net()
    strategy = MarkedFedAvg(
        fraction_train=PER_ROUND / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
    )
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=int(sys.argv[1]) + 1
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    report(f"flwr {version('flwr')}", strategy.marks, read_examples().measure_accuracy(net))


if __name__ == "__main__":
    workers = int(sys.argv[2])
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers},
        },
    )
