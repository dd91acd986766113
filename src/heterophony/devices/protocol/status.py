"""The state of a run and its devices as plain data for people. No I/O, no clock."""

from __future__ import annotations

from typing import Any

from .device_registry import RegisteredDevice
from .device_stats import DeviceCounters
from .server_session import ServerSession

STATUS_VERSION = 1  # of the data; readers check it
COUNTER_NAMES = ("bytes_down", "bytes_up", "tasks", "refused", "wrong", "reconnects")
Json = dict[str, Any]


def build_status(session: ServerSession, clock_offset: float = 0.0) -> Json:
    """Return the status; ``clock_offset`` is the date of the server's own time 0, in seconds."""
    stats, control = session.stats, session.control
    clients_by_device: dict[str, list[str]] = {}
    for client, device in session.registry.device_of_client.items():
        clients_by_device.setdefault(device, []).append(client)
    return {
        "form": STATUS_VERSION,
        "state": control.state,
        "t": control.t,
        "rounds": control.rounds,
        "devices": {
            device: {
                **format_device(counters, clock_offset),
                "clients": clients_by_device.get(device, []),
                "doing": list_activities(session, device, session.registry.devices.get(device)),
            }
            for device, counters in sorted(stats.counters.items())
        },
        "others": format_counters(stats.other_counters),
        "foreign": stats.foreign_messages,
    }


def format_device(counters: DeviceCounters, clock_offset: float) -> Json:
    since = None if counters.since is None else round(clock_offset + counters.since)
    return {"state": counters.state, "since": since, **format_counters(counters)}


def format_counters(counters: DeviceCounters) -> Json:
    counts = {name: getattr(counters, name) for name in COUNTER_NAMES}
    return {**counts, "seconds": round(counters.seconds, 3), "why": counters.last_reason}


def list_activities(
    session: ServerSession, device: str, record: RegisteredDevice | None
) -> list[Json]:
    """Return what the device does, as its messages show: its next task, and a reply being sent.

    A task is ``asked`` until the device pulls its tensors (``pull``), and is worked on (``train`` …)
    once the device has requested the last of them.
    """
    if record is None or not record.connected:
        return []
    sending = record.current_transfer[0].id if record.current_transfer else ""
    tasks = {o.task.id: o.task for o in session.assignments.list_open_tasks(device)}
    to_do = [t for key, t in tasks.items() if key != sending and key not in record.ready_replies]
    activities = []
    if to_do:
        task = min(to_do, key=lambda t: (t.t, t.job != "train"))
        requested = [record.requested_blobs.get(b.sha256) for b in (task.tensors, task.average)]
        if all(requested):
            what = task.job
        else:
            what = "pull" if any(r is not None for r in requested) else "asked"
        activities.append({"what": what, "client": task.client, "t": task.t})
    if sending in tasks:
        task = tasks[sending]
        activities.append({"what": "send", "client": task.client, "t": task.t})
    return activities
