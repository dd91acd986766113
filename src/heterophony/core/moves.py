"""Moves: how far training changed the tensors that a client received."""

from __future__ import annotations

from torch import Tensor

from .tensors import Tensors


def list_moves(up: Tensors, received: Tensors) -> list[str]:
    """List the tensors of a reply whose change counts: floating-point ones that the client received."""
    return [k for k, v in up.items() if k in received and is_movable(v, received[k])]


def is_movable(after: Tensor, before: Tensor) -> bool:
    return after.is_floating_point() and after.shape == before.shape


def compute_moves(up: Tensors, received: Tensors) -> Tensors:
    """Compute the change of every such tensor, in float64."""
    return Tensors({k: up[k].double() - received[k].double() for k in list_moves(up, received)})


def apply_moves(up: Tensors, received: Tensors, moves: Tensors) -> Tensors:
    """Return the tensors of a reply with other moves; the rest of it stays as it is."""
    return up | {k: (received[k].double() + v).to(up[k].dtype) for k, v in moves.items()}


def compute_norm(moves: Tensors) -> float:
    """Return the Euclidean norm of all moves as one vector."""
    return float(sum(float(v.square().sum()) for v in moves.values()) ** 0.5)
