"""Attention transfer: Zagoruyko and Komodakis, ICLR 2017: compare the attention of two networks."""

from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize

from ...core.errors import ConfigError
from ...core.tensors import sum_scalars

LAYERS_AFTER_CONV = (nn.MaxPool2d, nn.ReLU, nn.BatchNorm2d, nn.GroupNorm)


def find_stages(base: nn.Module) -> list[nn.Module]:
    """Find the modules to compare: ``layer1``, ``layer2``, … of a ResNet, or else the end of every
    block that begins with a convolution.
    """
    parts = dict(base.named_children())
    ends, before = list[nn.Module](), None
    for part in parts.values():
        if isinstance(part, nn.Conv2d):
            ends.append(part)
        elif isinstance(part, LAYERS_AFTER_CONV) and ends and ends[-1] is before:
            ends[-1] = part
        before = part
    stages = [m for k, m in parts.items() if k.startswith("layer")] or ends
    if not stages:
        raise ConfigError("algorithm.at: attention needs a model with convolutions in its base")
    return stages


def forward_with_attention(base: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the features, and each stage's attention map: squared activations over channels."""
    maps = list[Tensor]()

    def record_map(part: nn.Module, given: object, out: Tensor) -> None:
        maps.append(normalize(out.square().mean(1).flatten(1)))

    hooks = [part.register_forward_hook(record_map) for part in find_stages(base)]
    try:
        return base(x), maps
    finally:
        for hook in hooks:
            hook.remove()


def compute_attention_loss(student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """Compute the mean over stages of the mean squared difference of the maps."""
    return sum_scalars(map(mse_loss, student, teacher)) / len(student)
