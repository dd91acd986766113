"""Train your own model on your own data: ``python own_data.py serial`` or ``… pool``."""

import sys

import numpy as np
from torch import nn

import heterophony as hp


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))


def points(client):  # three clusters of points; each client labels them differently
    kind, draw = np.arange(80) % 3, np.random.default_rng(client)
    return np.eye(3)[kind] + draw.normal(scale=0.2, size=(80, 3)), (kind + client) % 3


if __name__ == "__main__":  # the pool's workers import this file too
    mine = hp.federate([points(client) for client in range(8)])
    result = hp.run("fedper", mine, model=Small, rounds=10, participation=1.0, engine=sys.argv[1])
    print(result, result.model_sha256)
