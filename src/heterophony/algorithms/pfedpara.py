"""pFedPara: Hyeon-Woo et al., ICLR 2022: FedPara with one of its two products personal."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.algorithm import Algorithm, Net, setting
from .fedpara import HadamardProduct, factorise_net


@dataclass(frozen=True)
class PFedPara(Algorithm):
    """Factorise weights as W1 ⊙ (W2 + 1); share the factors of W1, keep those of W2 personal."""

    paper = "Hyeon-Woo et al., ICLR 2022"
    gamma: float = setting(
        0.1, "size of a layer's factors, as a fraction of its parameters", above=0, high=1
    )

    def build(self, net: Net) -> Net:
        # the last layer depends most on the classes of a client: it must have a personal part
        return factorise_net(net, self.gamma, plus=1.0, last=True)

    def stays(self, net: Net) -> Iterable[str]:
        own = [(k[:-2], m) for k, m in net.named_modules() if isinstance(m, HadamardProduct)]
        halves = [(k, len(m.shapes) // 2) for k, m in own]
        return [f"{k}.original{i}" for k, half in halves for i in range(half, 2 * half)]
