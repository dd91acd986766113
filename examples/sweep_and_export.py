"""Tune two settings on validation examples, train with the best, load, plot, and export a model."""

import torch

import heterophony as hp

clients = hp.federate("digits", clients=10, validation_fraction=0.2)
varied = {"lr": [0.05, 0.1], "mu": [0.0, 0.1]}
table = hp.sweep("fedprox", clients, varied, rounds=5, training=hp.Training(momentum=0.0))
hp.draw_sweep(table).savefig("sweep.png")
print(table.best)

best = {key.split(".")[-1]: value for key, value in table.best.items()}
training = hp.Training(lr=best["lr"], momentum=0.0)
hp.run("fedprox", clients, mu=best["mu"], rounds=10, training=training, out="tuned")

result = hp.load("tuned", federation=clients)
result.plot().savefig("curves.png")
print(result.rows()[-1])
model = result.personal(7)
images = clients.samples("7", "test").get_all_stored()
torch.onnx.export(model, (images,), "client7.onnx")  # needs: pip install 'heterophony[onnx]'
