"""The base as it was received, as a teacher of the base that is being trained: PFAKD, FedCP."""

from torch import nn

from ...core.net import BATCH_NORMS, Net
from ...core.tensors import frozen


def make_teacher(net: Net) -> nn.Module:
    """Make the received base the teacher, with BatchNorm by the batch.

    Its running statistics are one client's, not those of the generic model.
    """
    teacher = frozen(net.base).eval()
    for m in teacher.modules():
        m.training = isinstance(m, BATCH_NORMS)
    return teacher
