"""The linear layers of a head: how wide features are, and what a head makes of them."""

from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.net import Net


def list_linear_layers(net: Net) -> list[nn.Linear]:
    """List the linear layers of the head, in order; the first one's input are the features."""
    layers = [m for m in net.head.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise ConfigError("model: the head has no linear layer; this algorithm needs one")
    return layers


def multiply_weights(layers: list[nn.Linear]) -> Tensor:
    """Multiply the weights of linear layers: outputs × features, as if nothing were between them."""
    product = layers[0].weight.detach()
    for layer in layers[1:]:
        product = layer.weight.detach() @ product
    return product
