"""A job far away: all it needs comes with it, all it leaves goes back with its reply.

The machine it runs on keeps nothing but the run's data, which can be sent again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ... import __version__
from ...core.algorithm import Reply
from ...core.codec import decode_groups, encode_groups
from ...core.errors import EngineError, HeterophonyError
from ...core.files import disk
from ...core.tensors import Tensors
from ...data.federation import Federation, saved
from ...jobs.client_store import Keeping
from ...jobs.plan import Job, Plan, work
from ..pool import settle_torch
from .temp_folders import Claim, claim

Bytes = NDArray[np.uint8]
Fetch = Callable[[Any], Any]  # what a reference stands for


@dataclass(frozen=True)
class Parcel:
    """Tensors on their way: their bytes, or a reference to them; equal keys, equal tensors."""

    key: int
    content: Any

    def raw(self, fetch: Fetch) -> bytes:
        found = self.content if isinstance(self.content, np.ndarray) else fetch(self.content)
        return bytes(found)


@dataclass(frozen=True)
class Errand:
    """A job without its tensors, and what it needs beside them."""

    job: Job
    tensors: Parcel
    average: Parcel
    memory: Bytes  # of its client, as the server's folder has it


@dataclass(frozen=True)
class Outcome:
    """A reply without its tensors, or what went wrong; and what there is to keep, if anything."""

    reply: Reply | HeterophonyError
    tensors: Bytes | None = None
    kept: Bytes | None = None


@dataclass(frozen=True)
class Luggage:
    """A run, as its workers get it: references to the plan and to the data."""

    versions: tuple[str, str]
    paths: tuple[str, ...]  # where the driver finds modules
    plan: Any
    about: str
    arrays: Mapping[str, Any]


class Carried(Keeping):
    """One client's memory, which came with the job."""

    def __init__(self, memory: bytes, scratch: Path) -> None:
        self.scratch, self.memories = scratch, {-1: memory}

    @property
    def kept(self) -> bytes | None:
        """What the job stored."""
        return next((blob for t, blob in self.memories.items() if t >= 0), None)

    def stored(self, client: str, before: int) -> bytes:
        return self.memories[max(t for t in self.memories if t < before)]

    def store(self, client: str, t: int, blob: bytes) -> None:
        self.memories[t] = blob


def versions() -> tuple[str, str]:
    """What must be the same wherever a run's jobs are done."""
    return __version__, torch.__version__


def as_array(blob: bytes) -> Bytes:
    """Bytes as Ray hands them on without a copy: read-only."""
    return np.frombuffer(blob, np.uint8)


# In the worker ------------------------------------------------------------------------------


class Workplace:
    """A run on this machine, open in this process: its plan, its data, the last tensors."""

    def __init__(self, run: str, luggage: Luggage, fetch: Fetch, loads: Callable[..., Any]) -> None:
        if luggage.versions != versions():
            theirs, ours = (" and torch ".join(v) for v in (luggage.versions, versions()))
            raise EngineError(
                f"this run is played with heterophony {theirs}, but a node of the cluster has"
                f" {ours}; install the same on all nodes"
            )
        settle_torch()
        self.run = run
        self.claim: Claim = claim(run)
        data = self.claim.folder / "data"
        if not data.exists():
            unpacked(data, luggage, fetch)
        known = [p for p in luggage.paths if p not in sys.path and Path(p).is_dir()]
        sys.path += known  # a user's own modules, if this machine has them, too
        plan: Plan = loads(bytes(fetch(luggage.plan)))
        self.plan = replace(plan, federation=Federation.open(data))
        self.tensors = OrderedDict[int, Tensors]()  # all clients of a round share them

    def opened(self, parcel: Parcel, fetch: Fetch) -> Tensors:
        if parcel.key not in self.tensors:
            content = parcel.raw(fetch)
            self.tensors[parcel.key] = decode_groups(content, finite=False)[0]["down"]
            while len(self.tensors) > 2:
                self.tensors.popitem(last=False)
        self.tensors.move_to_end(parcel.key)
        return self.tensors[parcel.key]


def unpacked(folder: Path, luggage: Luggage, fetch: Fetch) -> None:
    """The data as files of this machine; of several processes that begin, one is the first."""
    with disk(folder):
        mine = Path(tempfile.mkdtemp(dir=folder.parent))
        saved(mine, luggage.about, {k: fetch(ref) for k, ref in luggage.arrays.items()})
        try:
            mine.rename(folder)
        except OSError:
            shutil.rmtree(mine)
            if not folder.exists():
                raise


OPEN: list[Workplace] = []  # the run that this process last worked for


def workplace(
    run: str, luggage: Callable[[], Luggage], fetch: Fetch, loads: Callable[..., Any]
) -> Workplace:
    """The run in this process, opened once."""
    if not OPEN or OPEN[0].run != run:
        for before in OPEN:
            before.claim.leave()
        OPEN[:] = [Workplace(run, luggage(), fetch, loads)]
    return OPEN[0]


def done(here: Workplace, errands: Sequence[Errand], fetch: Fetch) -> list[Outcome]:
    """The jobs of a bundle, one after the other, up to the first that goes wrong."""
    outcomes: list[Outcome] = []
    for errand in errands:
        tensors, average = (here.opened(p, fetch) for p in (errand.tensors, errand.average))
        outcomes.append(
            outcome(here, replace(errand.job, tensors=tensors, average=average), errand)
        )
        if isinstance(outcomes[-1].reply, HeterophonyError):
            break
    return outcomes


def outcome(here: Workplace, job: Job, errand: Errand) -> Outcome:
    place = Carried(bytes(errand.memory), here.claim.folder)
    try:
        reply = work(here.plan, job, place)
    except HeterophonyError as error:
        return Outcome(type(error)(str(error)))
    except Exception as error:
        trace = traceback.format_exc()
        return Outcome(EngineError(f"client {job.client}, round {job.t}: {error!r}\n{trace}"))
    tensors = encode_groups({"up": reply.tensors, "aside": reply.aside})
    bare = replace(reply, tensors=Tensors(), aside=Tensors())
    return Outcome(bare, as_array(tensors), None if place.kept is None else as_array(place.kept))
