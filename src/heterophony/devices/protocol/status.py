"""How a run stands with its devices, as plain data for people to look at. No I/O, no clock."""

from __future__ import annotations

from typing import Any

from .device_registry import RegisteredDevice
from .device_stats import DeviceCounters
from .server_session import ServerSession

STATUS_VERSION = 1  # of the data; readers ask for it
COUNTER_NAMES = ("bytes_down", "bytes_up", "tasks", "refused", "wrong", "reconnects")
Json = dict[str, Any]


def build_status(hub: ServerSession, zero: float = 0.0) -> Json:
    """All devices by name; ``zero`` is the date of the server's own time 0, in seconds."""
    ledger, control = hub.registry.stats, hub.control
    holds: dict[str, list[str]] = {}
    for client, device in hub.registry.device_of_client.items():
        holds.setdefault(device, []).append(client)
    return {
        "form": STATUS_VERSION,
        "state": control.state,
        "t": control.t,
        "rounds": control.rounds,
        "devices": {
            device: {
                **format_device(account, zero),
                "clients": holds.get(device, []),
                "doing": list_activities(hub, device, hub.registry.devices.get(device)),
            }
            for device, account in sorted(ledger.counters.items())
        },
        "others": format_counters(ledger.other_counters),
        "foreign": ledger.foreign_messages,
    }


def format_device(account: DeviceCounters, zero: float) -> Json:
    since = None if account.since is None else round(zero + account.since)
    return {"state": account.state, "since": since, **format_counters(account)}


def format_counters(account: DeviceCounters) -> Json:
    counts = {name: getattr(account, name) for name in COUNTER_NAMES}
    return {**counts, "seconds": round(account.seconds, 3), "why": account.last_reason}


def list_activities(hub: ServerSession, device: str, guest: RegisteredDevice | None) -> list[Json]:
    """What the device is at, as far as its messages tell: the next task, and a reply under way.

    A task is ``asked`` for until the device pulls its tensors, and done (``train`` …) once it has
    asked for the last of them.
    """
    if guest is None or not guest.connected:
        return []
    sending = guest.current_transfer[0].id if guest.current_transfer else ""
    tasks = {o.task.id: o.task for o in hub.assignments.list_open_tasks(device)}
    to_do = [t for key, t in tasks.items() if key != sending and key not in guest.ready_replies]
    out = []
    if to_do:
        task = min(to_do, key=lambda t: (t.t, t.job != "train"))
        pulled = [guest.requested_blobs.get(b.sha256) for b in (task.tensors, task.average)]
        begun = task.job if all(pulled) else "pull" if any(p is not None for p in pulled) else ""
        out.append({"what": begun or "asked", "client": task.client, "t": task.t})
    if sending in tasks:
        task = tasks[sending]
        out.append({"what": "send", "client": task.client, "t": task.t})
    return out
