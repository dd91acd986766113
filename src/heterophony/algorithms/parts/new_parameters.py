"""New initial parameters for copies of a net, one copy for each cluster of IFCA."""

from torch import Tensor, nn


def initialise(module: nn.Module) -> nn.Module:
    """Draw new initial parameters for every layer that can; frozen ones stay what they are."""
    kept = [(v, v.clone()) for m in module.modules() for v in list_frozen(m)]
    for m in module.modules():
        draw = getattr(m, "reset_parameters", None)
        if callable(draw):
            draw()
    for v, before in kept:
        v.data.copy_(before)
    return module


def list_frozen(layer: nn.Module) -> list[Tensor]:
    """List a layer's own frozen parameters and, if all of them are, its running statistics."""
    own = list(layer.parameters(recurse=False))
    frozen = [p for p in own if not p.requires_grad]
    whole = bool(own) and len(frozen) == len(own)
    return [*frozen, *(layer.buffers(recurse=False) if whole else ())]
