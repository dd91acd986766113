"""The server's loop over rounds: train and evaluate on an engine, merge, record, commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch

from ..core.accelerator import ON_CPU, Compute
from ..core.algorithm import Reply, Server
from ..core.errors import CodecError, ConfigError, DivergedError, HeterophonyError, NotFiniteError
from ..core.randomness import seeded
from ..core.tensors import Tensors, mix
from ..engines.base import Engine, Judge
from ..jobs.plan import Job, Plan
from ..jobs.work import announce_to_clients, restore_replies, split_announced
from ..population.attacks import RoundEnd
from ..protection import get_kind
from ..protection.base import Gathered, Gathering
from . import events, round_events
from .folder import MemoryDigests, RunFolder, record_memories


def run_rounds(
    plan: Plan,
    engine: Engine,
    folder: RunFolder,
    compute: Compute = ON_CPU,
    get_stop_reason: Callable[[], str] = lambda: "",
) -> Iterator[events.Event]:
    """Run the remaining rounds and commit each; yield every event after it is recorded.

    ``compute`` is the engine's device and precision, which the first event describes. The run stops
    after the round in which ``get_stop_reason`` first returns a reason.
    """
    server = folder.restore_newest_commit(plan.federation.sizes())
    if server is None:
        server = plan.create_initial_server()
        yield from record_events(folder, [round_events.make_start_event(plan, server, compute)])
        if plan.keep_best:
            folder.commit(server)
    server, clock = plan.complete_server(server), read_simulated_clock(folder)
    spent = read_spent_epsilon(folder)
    while server.t < plan.rounds and not get_stop_reason():
        digests = folder.memory_digests
        server, evaluation, done = run_round(plan, engine, server, clock, digests, spent)
        yield from record_events(folder, [evaluation, done] if evaluation else [done])
        clock, spent = done.get("clock", clock), done.get("epsilon", spent)
        commit_round(plan, folder, server, done)
    if events.get_end(list(folder.iterate_events())) is None:
        reason = get_stop_reason() if server.t < plan.rounds else ""
        yield from finish_run(plan, engine, folder, server, reason)
        folder.commit(server, events.find_kept_round(list(folder.iterate_events())))


def commit_round(plan: Plan, folder: RunFolder, server: Server, done: events.RoundEvent) -> None:
    """Commit the state after a round, and delete client memories that are no longer needed."""
    kept = events.find_kept_round(list(folder.iterate_events())) if plan.keep_best else None
    folder.commit(server, kept)
    folder.client_store.delete_old_memories(
        done.get("asked") or done["clients"], before=folder.find_oldest_commit(), keep=kept
    )


def run_round(
    plan: Plan,
    engine: Engine,
    server: Server,
    clock: float = 0.0,
    memories: MemoryDigests | None = None,
    spent: float | None = None,
) -> tuple[Server, events.EvaluationEvent | None, events.RoundEvent]:
    """Run round ``server.t``, which starts at the simulated time ``clock``; return server and events.

    An evaluation that is due runs together with the training, so that no worker is idle. Digests of the
    memories that clients store are added to ``memories``. ``spent`` is ε before the round.
    """
    begun, t = time.perf_counter(), server.t
    selected = plan.select_clients(t, clock, engine.available(plan.federation.clients))
    check_repeated_selection(plan, t, selected)
    sent = announce_to_clients(plan, {c: plan.algorithm.send(server, c) for c in selected})
    jobs = build_training_jobs(plan, t, selected, sent)
    if plan.is_evaluated(t):
        jobs += build_evaluation_jobs(plan, server)
    trained, evaluated = list[Reply](), list[Reply]()
    for reply in engine.run(jobs):
        (trained if reply.kind == "train" else evaluated).append(reply)
    order = {c: i for i, c in enumerate(plan.federation.clients)}
    trained.sort(key=lambda r: (order.get(r.client, 0), r.turn))
    record_memories({} if memories is None else memories, t, trained)
    end = simulate_round_end(plan, selected, sent, trained, clock)
    gathered = gather_replies(plan, server, [trained[i] for i in end.merged], sent)
    after, merged, refused = merge_replies(plan, server, list(gathered.replies), engine.judge)
    merged = [r for r in merged if r.client]  # a protection may add replies that no client sent
    done = round_events.FinishedRound(
        t=t,
        selected=selected,
        sent=sent,
        trained=trained,
        merged=merged,
        refused=refused,
        filtered=gathered.filtered,
        spent=spent,
        evaluated=evaluated,
        end=end,
        clock=clock,
        # measures are computed from single replies, which protections may hide
        measures={}
        if not merged or any(p.guards_replies for p in plan.protections)
        else plan.algorithm.measures(server, merged, after),
        boards=engine.describe_round(),
    )
    evaluation = round_events.make_evaluation_event(plan, t, evaluated) if evaluated else None
    seconds = round(time.perf_counter() - begun, 4)
    return after, evaluation, round_events.make_round_event(plan, done, seconds)


def finish_run(
    plan: Plan, engine: Engine, folder: RunFolder, server: Server, stopped: str
) -> Iterator[events.Event]:
    """Evaluate the last state, let new clients join, and finish the run; yield the events.

    ``stopped`` is the reason that the run stops before its last round; empty if it does not.
    """
    begun = time.perf_counter()
    replies = list(engine.run(build_evaluation_jobs(plan, server)))
    seconds = round(time.perf_counter() - begun, 4)
    evaluation = round_events.make_evaluation_event(plan, server.t, replies)
    recorded = [*folder.iterate_events(), evaluation]
    kept = events.find_kept_round(recorded)
    joined = server
    if kept is not None and kept != server.t:
        joined = plan.complete_server(folder.load_commit(kept, plan.federation.sizes()))
    new = join_new_clients(plan, engine, joined)
    end = round_events.make_end_event(plan, folder.client_store, server, replies, seconds)
    if stopped:
        end["stopped"] = stopped
    yield from record_events(folder, [evaluation, *([new] if new else []), end])


def build_training_jobs(
    plan: Plan, t: int, selected: list[str], sent: Mapping[str, Tensors]
) -> list[Job]:
    """Make the training jobs of round ``t``, for the selected clients that do not drop out.

    A client that was selected twice has two jobs, with turns 0 and 1.
    """
    sizes, left = plan.federation.sizes(), Counter(selected)
    turns, jobs = Counter[str](), list[Job]()
    for c in selected:
        left[c] -= 1
        if plan.fault_free or not plan.faults.has_dropped_out(t, c, plan.seed):
            cost, last = sizes.get(c, 0), left[c] == 0
            jobs.append(
                Job(
                    kind="train",
                    t=t,
                    client=c,
                    tensors=sent[c],
                    cost=cost,
                    turn=turns[c],
                    keeps_memory=last,
                )
            )
        turns[c] += 1
    return jobs


def check_repeated_selection(plan: Plan, t: int, selected: list[str]) -> None:
    """Raise ConfigError if a client is selected twice and a protection allows it only one reply."""
    for protection in plan.protections:
        if protection.once_per_round and len(set(selected)) < len(selected):
            raise ConfigError(
                f"protection.{get_kind(protection)}: a client was selected twice in round {t};"
                " choose a participation without replacement"
            )


def simulate_round_end(
    plan: Plan, selected: list[str], sent: Mapping[str, Tensors], trained: list[Reply], clock: float
) -> RoundEnd:
    """Simulate when the replies arrive and the round ends; identify replies by their positions."""
    if plan.fault_free:
        return RoundEnd(0.0, tuple(range(len(trained))), ())
    if not selected:
        clients = plan.federation.clients
        return RoundEnd(plan.faults.compute_idle_seconds(clients, clock, plan.seed), (), ())
    arrivals, busy = list[float | None](), dict[str, float]()
    for r in trained:  # a client that was selected twice trains its turns one after the other
        down, up = sent[r.client].nbytes, r.tensors.nbytes
        seconds = plan.speeds.compute_round_seconds(r.client, down, r.examples, up, plan.seed)
        busy[r.client] = busy.get(r.client, 0.0) + seconds
        arrivals.append(busy[r.client])
    never = [None] * (len(selected) - len(trained))
    return plan.faults.determine_round_end([*arrivals, *never])


def build_evaluation_jobs(plan: Plan, server: Server) -> list[Job]:
    """Make an evaluation job for every client, with the tensors that the server would send it now."""
    tests, validations = (plan.federation.sizes(part) for part in ("test", "validation"))
    costs = {c: tests[c] + validations[c] for c in plan.federation.clients}
    return build_jobs(plan, server, "evaluate", costs)


def build_jobs(
    plan: Plan, server: Server, kind: Literal["evaluate", "join"], costs: Mapping[str, int]
) -> list[Job]:
    """Make a job for each client in ``costs``, to evaluate it or to let it join after training."""
    send, average = plan.algorithm.send, server.average | server.model
    return [
        Job(kind=kind, t=server.t, client=c, tensors=send(server, c), generic_model=average, cost=n)
        for c, n in costs.items()
    ]


def record_events(folder: RunFolder, events: Iterable[events.Event]) -> Iterator[events.Event]:
    """Append events to the run folder; yield each of them after it is recorded."""
    for event in events:
        folder.append_event(event)
        yield event


def read_simulated_clock(folder: RunFolder) -> float:
    """Return the simulated time at the end of the recorded rounds."""
    rounds = events.select_rounds(folder.iterate_events())
    return max((float(e.get("clock", 0.0)) for e in rounds), default=0.0)


def read_spent_epsilon(folder: RunFolder) -> float | None:
    """Return ε after the recorded rounds; None before the first round, or if ε has no bound."""
    rounds = events.select_rounds(folder.iterate_events())
    return rounds[-1].get("epsilon") if rounds else None


def join_new_clients(plan: Plan, engine: Engine, server: Server) -> events.NewClientsEvent | None:
    """Let new clients join and train on their own data; return the event, or None without new clients.

    Their replies are never merged, so the jobs can be repeated after an interruption.
    """
    new = plan.federation.new
    if not new:
        return None
    begun = time.perf_counter()
    sizes = plan.federation.include_new_clients().sizes()
    jobs = build_jobs(plan, server, "join", {c: sizes[c] for c in new})
    replies = list(engine.run(jobs))
    return round_events.make_new_clients_event(
        plan, server.t, replies, round(time.perf_counter() - begun, 4)
    )


# The merge ----------------------------------------------------------------------------------------


def gather_replies(
    plan: Plan, server: Server, replies: Sequence[Reply], sent: Mapping[str, Tensors]
) -> Gathered:
    """Apply simulated attacks and the server's part of the protections; return the replies to merge."""
    if not plan.protections and not plan.attack.is_active:
        return Gathered(replies)
    received = {c: split_announced(v)[0] for c, v in sent.items()}
    restored = restore_replies(plan, replies, sent)
    ready: Sequence[Reply] = plan.attack.falsify_replies(
        restored, received, plan.federation.clients, server.t, plan.seed
    )
    gathering = Gathering(
        t=server.t,
        received=received,
        expected=plan.expected_replies,
        empty_reply=make_empty_reply(plan, server),
        secret=plan.secret,
    )
    filtered = dict[str, None]()
    for protection in reversed(plan.protections):
        gathered = protection.gather(ready, gathering)
        ready = gathered.replies
        filtered |= dict.fromkeys(gathered.filtered)
    return Gathered(ready, tuple(filtered))


def make_empty_reply(plan: Plan, server: Server) -> Reply:
    """Make a reply that changes nothing: it returns the tensors that the client received."""
    first = plan.federation.clients[0]
    received = plan.algorithm.send(server, first)
    return Reply("", "train", received, 0, 1.0, aside=server.average)


class MergedRound(NamedTuple):
    """The server after a round, and the replies that were merged or refused."""

    after: Server
    merged: list[Reply]
    refused: list[Reply]


def merge_replies(
    plan: Plan, server: Server, replies: list[Reply], judge: Judge | None
) -> MergedRound:
    """Merge the replies of a round; leave out updates that damage the model if clients are not trusted.

    Raise DivergedError if trusted clients' updates damage the model.
    """
    try:
        return MergedRound(merge_and_check(plan, server, replies, judge), replies, [])
    except CodecError as error:
        suspects = find_responsible_clients(plan, server, replies, judge)
        if judge is None:
            who = (
                f"the update of client {' or '.join(suspects)}"
                if suspects
                else "several updates together"
            )
            raise DivergedError(
                f"round {server.t}: {error}, because of {who}; lower training.lr"
            ) from None
        if not suspects and error.__cause__ is not None:
            raise error.__cause__ from None  # a mistake in the algorithm, not in an update
        # if no single client is responsible, no update of this round can be trusted
        refused = [r for r in replies if r.client in suspects] or replies
        for reply in refused:
            judge.refuse_update(reply, server.t, error)
        merged = [r for r in replies if suspects and r.client not in suspects]
        return MergedRound(merge_and_check(plan, server, merged, judge), merged, refused)


def find_responsible_clients(
    plan: Plan, server: Server, replies: Sequence[Reply], judge: Judge | None
) -> list[str]:
    """List the clients whose update alone damages the merged model, which would be valid without that update."""
    found = []
    for client in dict.fromkeys(r.client for r in replies):
        rest = [r for r in replies if r.client != client]
        try:
            merge_and_check(plan, server, rest, judge)
        except CodecError:
            continue
        found.append(client)
    return found


def merge_and_check(
    plan: Plan, server: Server, replies: list[Reply], judge: Judge | None
) -> Server:
    """Merge the replies of a round; raise CodecError if the merged state is not valid."""
    if not replies:
        return replace(server, t=server.t + 1)
    try:
        after = merge(plan, server, replies)
    except Exception as error:
        if judge is None or isinstance(error, HeterophonyError):
            raise
        raise CodecError(f"the updates cannot be merged: {error!r}") from error
    check_finite(server, after)
    if judge is not None:
        judge.check_merged(after)
    return after


def merge(plan: Plan, server: Server, replies: list[Reply]) -> Server:
    """Return the server's state after the algorithm has merged a round's replies."""
    with seeded(plan.seed, "merge", server.t):
        after = plan.algorithm.merge(server, replies)
    return replace(after, t=server.t + 1, average=average_personal(replies))


def check_finite(before: Server, after: Server) -> None:
    """Raise NotFiniteError if a tensor that the merge has changed is not finite."""
    groups = {"": (before.model, after.model)}
    groups |= {f"{g}: ": (before.memory.get(g, Tensors()), v) for g, v in after.memory.items()}
    for where, (old, new) in groups.items():
        for name, v in new.items():
            if v is old.get(name) or not v.is_floating_point():
                continue
            if not bool(torch.isfinite(v).all()):
                raise NotFiniteError(f"'{where}{name}' of the merged model holds NaN or infinity")


def average_personal(replies: list[Reply]) -> Tensors:
    """Average the clients' personal parameters. Only G uses the average; no client trains on it."""
    total = sum(r.weight for r in replies)
    return mix([r.aside for r in replies], [r.weight / total for r in replies])
