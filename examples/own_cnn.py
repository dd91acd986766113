"""Train a CNN of your own that ends in log_softmax, with the NLL loss."""

from torch import Tensor, nn
from torch.nn.functional import log_softmax, max_pool2d, nll_loss, relu

import heterophony as hp


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.conv(x)), 2).flatten(1)
        return log_softmax(self.fc2(relu(self.fc1(x))), dim=1)


clients = hp.federate("digits", clients=10, partition=hp.Dirichlet(0.3))
how = {"model": CNN, "loss": nll_loss, "training": hp.Training(lr=0.05), "metrics": ["f1"]}
result = hp.run("fedper", clients, rounds=10, participation=0.5, **how)
print(result, result.metrics)
