"""Losses and teachers for distillation: outputs, attention maps, received models, MMD, FedGen's generator."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, linear, mse_loss, normalize, one_hot

from ...core.errors import ConfigError
from ...core.net import BATCH_NORMS, Net
from ...core.tensors import Tensors, frozen, sum_scalars
from ...core.training import Adam, Training

LAYERS_AFTER_CONV = (nn.MaxPool2d, nn.ReLU, nn.BatchNorm2d, nn.GroupNorm)


def find_stages(base: nn.Module) -> list[nn.Module]:
    """Find the modules whose outputs attention transfer compares.

    In a ResNet they are ``layer1``, ``layer2``, …; in other nets, the last module of every block that
    begins with a convolution.
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
        raise ConfigError(
            "algorithm.at: attention transfer needs a model whose base has convolutions; choose one, or change algorithm.at"
        )
    return stages


def forward_with_attention(base: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return a base's features and attention maps: each stage's squared activations over channels."""
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
    """Compute the attention-transfer loss: the mean squared difference of maps, averaged over stages."""
    return sum_scalars(map(mse_loss, student, teacher)) / len(student)


def make_teacher(net: Net) -> nn.Module:
    """Make a teacher for distillation from the received base; its BatchNorm uses the batch's statistics.

    The running statistics are those of one client, not of the generic model.
    """
    teacher = frozen(net.base).eval()
    for m in teacher.modules():
        m.training = isinstance(m, BATCH_NORMS)
    return teacher


def reset_unfrozen_layers(net: nn.Module) -> None:
    """Reset the layers of a net to new initial parameters, except layers with frozen parameters."""
    for layer in net.modules():
        draw = getattr(layer, "reset_parameters", None)
        if draw is not None and all(p.requires_grad for p in layer.parameters(recurse=False)):
            draw()


def compute_kl_divergence(out: Tensor, teacher: Tensor) -> Tensor:
    """Compute the KL divergence from a teacher's outputs, averaged over examples; the teacher gets no gradient."""
    goal = teacher.detach().softmax(1)
    return kl_div(out.log_softmax(1), goal, reduction="batchmean")


BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # as in the code of FedCP's authors


def compute_mmd(a: Tensor, b: Tensor) -> Tensor:
    """Compute the squared MMD between two sets of equally many vectors, summed over the bandwidths."""
    a, b = a.flatten(1).float(), b.flatten(1).float()
    pairs = ((a, a, 1.0), (b, b, 1.0), (a, b, -2.0))
    terms = [
        sign * (square_distances(x, y) / (-2 * width)).exp().mean()
        for x, y, sign in pairs
        for width in BANDWIDTHS
    ]
    return torch.stack(terms).sum()


def square_distances(x: Tensor, y: Tensor) -> Tensor:
    """Compute the squared distances of all pairs of rows, exactly 0 for equal rows."""
    # matrix products would round: equal rows could get a positive distance
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def make_generator(classes: int, width: int, noise: int, hidden: int) -> nn.Module:
    """Make FedGen's generator: a two-layer net that maps noise and a label to features."""
    layers = {"inner": nn.Linear(noise + classes, hidden), "outer": nn.Linear(hidden, width)}
    return nn.ModuleDict(layers)


def generate_features(w: Tensors, labels: Tensor, noise: Tensor) -> Tensor:
    """Generate features for each label with FedGen's generator, whose parameters are ``w``."""
    classes = w["inner.weight"].shape[1] - noise.shape[1]
    given = torch.cat([noise, one_hot(labels, classes).to(noise)], 1)
    hidden = linear(given, w["inner.weight"], w["inner.bias"]).relu()
    return linear(hidden, w["outer.weight"], w["outer.bias"])


def draw_labels(shares: Tensor, count: int) -> Tensor:
    """Draw labels for FedGen's generator, with probabilities proportional to ``shares``."""
    return torch.multinomial(shares, count, replacement=True)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Compute on one thread, as clients do: the rounding of sums may depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class GeneratorTraining:
    """Training settings of FedGen's generator: ``noise`` is a width, ``diversity`` a loss weight."""

    steps: int
    batch: int
    noise: int
    lr: float
    diversity: float


def train_generator(
    w: Tensors, heads: Tensors, labels: Tensor, how: GeneratorTraining, kept: Tensors
) -> tuple[Tensors, Tensors]:
    """Train FedGen's generator to make the mean head recover the labels; return parameters and Adam's state."""
    w = w.map(lambda v: v.detach().clone().requires_grad_())
    weight, bias = (next((v for v in heads.values() if v.dim() == d), None) for d in (2, 1))
    assert weight is not None
    adam = Adam(w, Training(optimizer="adam", lr=how.lr), {}, kept)
    with on_one_thread():
        for _ in range(how.steps):
            y, eps = draw_labels(labels, how.batch), torch.randn(how.batch, how.noise)
            z = generate_features(w, y, eps)
            loss = cross_entropy(linear(z, weight, bias), y)
            if how.diversity:
                loss = loss + how.diversity * compute_diversity_loss(z, eps)
            adam.zero_grad()
            loss.backward()
            adam.step()
    return w.map(lambda v: v.detach()), Tensors(adam.state())


def compute_diversity_loss(z: Tensor, eps: Tensor) -> Tensor:
    """Compute FedGen's diversity loss: 1 if features of different noise are equal, less otherwise."""
    features = torch.cdist(z, z, p=1.0) / z.shape[1]
    noises = torch.cdist(eps, eps).square() / eps.shape[1]
    return (-noises * features).mean().exp()
