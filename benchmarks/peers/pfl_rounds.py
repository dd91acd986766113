"""Run the rounds of ``small_jobs.py`` with pfl-research: torchrun --nproc_per_node=2 pfl_rounds.py ROUNDS."""

from __future__ import annotations

import os
import random
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from shared_work import build_net, read_examples, report
from small_work import BATCH, CLIENTS, EPOCHS, LR, PER_ROUND
from torch import nn
from torch.nn.functional import cross_entropy


class Classifier(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build_net()

    def loss(self, x, y, is_eval=False):
        self.train(not is_eval)
        return cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x, y, is_eval=True):
        self.eval()
        return {"loss": Weighted(float(cross_entropy(self.net(x), y)) * len(y), len(y))}


class Marks(TrainingProcessCallback):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    examples, classifier, marks = read_examples(), Classifier(), Marks()
    federation = FederatedDataset(
        lambda c: Dataset(raw_data=examples.get_training_examples(c)),
        get_user_sampler("minimize_reuse", list(range(CLIENTS))),
    )
    model = PyTorchModel(
        classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=federation, val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=LR, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[marks],
        send_metrics_to_platform=False,
    )
    if os.environ.get("RANK", "0") == "0":
        accuracy = examples.measure_accuracy(classifier.net)
        report(f"pfl {version('pfl')}", marks.times, accuracy)


if __name__ == "__main__":
    main()
