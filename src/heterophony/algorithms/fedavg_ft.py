"""FedAvg with fine-tuning: each client trains the common model on its own data before using it."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Client, setting


@dataclass(frozen=True)
class FedAvgFT(Algorithm):
    """Train FedAvg; fine-tune the common model on each client's data before P is measured."""

    paper = "McMahan et al., AISTATS 2017; fine-tuned as in Yu et al., 2020"
    tune_epochs: int = setting(1, "epochs of fine-tuning before P is measured", low=0)
    tune_every: int = setting(1, "rounds between measurements of P", low=1)

    def ready(self, t: int) -> bool:
        return t % self.tune_every == 0

    def adapt(self, client: Client) -> None:
        client.fit(epochs=self.tune_epochs, phase="tune")
