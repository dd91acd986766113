"""Predict a number from the rows of a table: the progress of diabetes after a year."""

from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch import nn

import heterophony as hp

table = load_diabetes()
x = StandardScaler().fit_transform(table.data).astype("float32")
y = (table.target - table.target.mean()) / table.target.std()
clients = hp.federate((x, y), task="regression", clients=8, partition=hp.Dirichlet(1.0))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
training = hp.Training(lr=0.01, momentum=0.0)
for algorithm in ("fedavg", "ditto", "local"):
    result = hp.run(algorithm, clients, model=model, rounds=20, training=training)
    print(algorithm, result, result.metrics["rmse"])  # G and P are R²
