"""How a run stands with its devices, as plain data for people to look at. No I/O, no clock."""

from __future__ import annotations

from typing import Any

from .device_registry import Guest
from .device_stats import Account
from .server_session import Hub

FORM = 1  # of the data; readers ask for it
COUNTS = ("bytes_down", "bytes_up", "tasks", "refused", "wrong", "reconnects")
Json = dict[str, Any]


def overview(hub: Hub, zero: float = 0.0) -> Json:
    """All devices by name; ``zero`` is the date of the server's own time 0, in seconds."""
    ledger, control = hub.guests.ledger, hub.control
    holds: dict[str, list[str]] = {}
    for client, device in hub.guests.holders.items():
        holds.setdefault(device, []).append(client)
    return {
        "form": FORM,
        "state": control.state,
        "t": control.t,
        "rounds": control.rounds,
        "devices": {
            device: {
                **told(account, zero),
                "clients": holds.get(device, []),
                "doing": doing(hub, device, hub.guests.known.get(device)),
            }
            for device, account in sorted(ledger.accounts.items())
        },
        "others": counted(ledger.others),
        "foreign": ledger.foreign,
    }


def told(account: Account, zero: float) -> Json:
    since = None if account.since is None else round(zero + account.since)
    return {"state": account.state, "since": since, **counted(account)}


def counted(account: Account) -> Json:
    counts = {name: getattr(account, name) for name in COUNTS}
    return {**counts, "seconds": round(account.seconds, 3), "why": account.last}


def doing(hub: Hub, device: str, guest: Guest | None) -> list[Json]:
    """What the device is at, as far as its messages tell: the next task, and a reply under way.

    A task is ``asked`` for until the device pulls its tensors, and done (``train`` …) once it has
    asked for the last of them.
    """
    if guest is None or not guest.here:
        return []
    sending = guest.pulling[0].id if guest.pulling else ""
    tasks = {o.task.id: o.task for o in hub.work.of(device)}
    to_do = [t for key, t in tasks.items() if key != sending and key not in guest.ready]
    out = []
    if to_do:
        task = min(to_do, key=lambda t: (t.t, t.job != "train"))
        pulled = [guest.pulled.get(b.sha256) for b in (task.tensors, task.average)]
        begun = task.job if all(pulled) else "pull" if any(p is not None for p in pulled) else ""
        out.append({"what": begun or "asked", "client": task.client, "t": task.t})
    if sending in tasks:
        task = tasks[sending]
        out.append({"what": "send", "client": task.client, "t": task.t})
    return out
