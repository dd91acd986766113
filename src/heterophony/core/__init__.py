"""The vocabulary that algorithms are written in: tensors, nets, clients, samples, settings, errors."""
