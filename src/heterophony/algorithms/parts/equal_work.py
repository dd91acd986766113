"""Split a client's round between two parts, so that both together are as much work as FedAvg."""

from ...core.client import Client


def split_steps(client: Client, share: int, of: int) -> tuple[int, int]:
    """Split the mini-batches of the round: ``share`` of ``of`` for the first part, then the rest.

    Both parts have one at least; a single mini-batch is the second part's.
    """
    total = client.steps
    first = total * share // of
    if total > 1:
        first = min(max(first, 1), total - 1)
    return first, total - first
