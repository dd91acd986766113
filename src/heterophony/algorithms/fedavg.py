"""FedAvg: McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Average the clients' models, weighted by their numbers of training examples."""

    paper = "McMahan et al., AISTATS 2017"
