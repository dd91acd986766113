"""Check replies from boards before they are used: their metrics, tensors, norms and weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..core.algorithm import Reply, Server
from ..core.codec import check_same_structure
from ..core.errors import CodecError, NotFiniteError
from ..core.scores import LOSS_PREFIX, get_metric_info
from ..core.temporary import temporary_folder
from ..core.tensors import Tensors, matches_any
from ..jobs.client_store import FolderClientStore
from ..jobs.dry_runs import DUMMY_CLIENT, make_blank_targets, make_dry_plan, simulate_reply
from ..jobs.evaluation import is_generic_model_known
from ..jobs.plan import Job, Plan
from ..jobs.work import restore_tensors
from .protocol.job_codec import encode_reply

TEST_COUNT_METRICS = ("G", "P", "P_local", "before")  # at most the number of test examples
VALIDATION_COUNT_METRICS = ("G_valid", "P_valid")
METRIC_NAME = re.compile(r"[A-Za-z]\w{0,40}(/\w{1,40})?")
MAX_METRICS = 32  # in one reply
MAX_VALUE = 1e100  # limit for a metric: its square and its sum over all examples are still finite


def check_metrics(plan: Plan, found: Mapping[str, float], client: str) -> None:
    """Raise CodecError unless a reply's metrics have valid names, and values that its client can have."""
    federation = plan.federation.include_new_clients()
    tested, held_out = (federation.sizes(p)[client] for p in ("test", "validation"))
    limits = {
        **dict.fromkeys(TEST_COUNT_METRICS, tested),
        **dict.fromkeys(VALIDATION_COUNT_METRICS, held_out),
    }
    # cells of the confusions of G and P that can hold an example
    cells = 2 * (tested + held_out) if plan.confusion else 0
    if len(found) > MAX_METRICS + cells:
        raise CodecError(
            f"the reply has {len(found)} metrics; at most {MAX_METRICS + cells} are allowed"
        )
    for name, value in found.items():
        if not METRIC_NAME.fullmatch(name):
            raise CodecError(f"metric {name[:80]!r} is not a name")
        if not math.isfinite(value):
            raise CodecError(f"metric {name!r} is not finite")
        if abs(value) > MAX_VALUE:
            raise CodecError(f"metric {name!r} is {value:g}, over {MAX_VALUE:g}")
        if name in limits and not is_possible_score(plan, value, limits[name]):
            raise CodecError(
                f"metric {name!r} is {value:g}, but there are only {limits[name]} examples"
            )
        if value <= 0 and get_metric_info(name.partition("/")[2]).pooling == "log":
            raise CodecError(f"metric {name!r} is {value:g}, but must be above 0")
        if (measure := name.removeprefix(LOSS_PREFIX)) != name and measure in limits:
            check_loss(measure, value, found)


def check_loss(measure: str, value: float, found: Mapping[str, float]) -> None:
    """Raise CodecError if a reply's loss is negative, or if the score of the same measure is missing."""
    if measure not in found:
        raise CodecError(f"metric '{LOSS_PREFIX}{measure}' is present, but {measure!r} is missing")
    if value < 0:
        raise CodecError(f"metric '{LOSS_PREFIX}{measure}' is {value:g}, but must not be negative")


def is_possible_score(plan: Plan, value: float, examples: int) -> bool:
    """Return True if a client with this number of examples can have this sum of scores."""
    if plan.task.name == "classification" and value != int(value):
        return False
    return value <= examples and (value >= 0 or plan.task.name == "regression")


def list_expected_measures(plan: Plan, job: Job, client: str) -> frozenset[str]:
    """List the scores that a client measures in an evaluation: G, P, both or none.

    The plan must hold the client's data.
    """
    algorithm, found = plan.algorithm, set[str]()
    if job.t == plan.rounds or algorithm.ready(job.t):
        found.add("P")
    if algorithm.common:
        with temporary_folder() as folder:
            store = FolderClientStore(folder / "clients", folder / "scratch")
            blank = replace(job, client=client, tensors=Tensors())
            generic = plan.build_client(blank, {"net": job.generic_model}, store, generic=True)
            if is_generic_model_known(plan, generic):
                found.add("G")
    return frozenset(found)


MAX_NORM_RATIO = 1000.0  # of an update to the tensors sent; honest training stays far below
MAX_REPLY_HEADER_BYTES = 64 << 10  # names, numbers and metrics, without the tensors


@dataclass(frozen=True)
class ReplyForm:
    """The form that training replies of clients with the same net must have."""

    largest: Reply  # reply of a client with examples of every class; no reply has more tensors
    required: frozenset[str]  # tensors that every client sends, regardless of its classes
    nbytes: int  # size of a training reply with all tensors
    initial: Tensors  # what such a client receives in the first round


class ReplyValidator:
    """Checks the replies of boards against replies that the algorithm itself computes."""

    def __init__(self, plan: Plan, max_norm_ratio: float = MAX_NORM_RATIO) -> None:
        self.plan, self.max_norm_ratio = plan, max_norm_ratio
        self._measures = dict[tuple[object, ...], frozenset[str]]()
        self._forms = dict[str, ReplyForm]()

    def prepare(self) -> None:
        """Compute the expected form of every client's replies before the run, when no board can be at fault."""
        for client in self.plan.federation.train:
            self.get_form(client)

    def get_form(self, client: str) -> ReplyForm:
        """Return the expected form of a client's replies; clients with the same net share one form."""
        net = self.plan.net_of.get(client, "")
        if net not in self._forms:
            self._forms[net] = self.compute_form(client)
        return self._forms[net]

    def compute_form(self, client: str) -> ReplyForm:
        """Compute the expected form of a client's replies by training on blank examples."""

        def simulate(y: Tensor) -> Reply:
            return simulate_reply(self.plan, y, like=client)[0]

        largest, sent = simulate(make_blank_targets(self.plan)), self.initial_server
        required = frozenset(largest.tensors)
        if self.plan.task.name == "classification":
            for c in (0, self.plan.federation.classes - 1):
                required &= simulate(torch.tensor([c])).tensors.keys()
        size = len(encode_reply(largest, self.plan.share_personal))
        return ReplyForm(largest, required, size, self.plan.algorithm.send(sent, client))

    @cached_property
    def initial_server(self) -> Server:
        """The server's state before the first round."""
        return self.plan.create_initial_server()

    def list_measures(self, job: Job) -> frozenset[str]:
        """List the scores that every reply to an evaluation must have: G, P, both or none."""
        plan = self.plan
        ready = job.t == plan.rounds or plan.algorithm.ready(job.t)
        key = (ready, *plan.list_names(plan.template, job.t, "shared"))
        if key not in self._measures:
            dry_plan = make_dry_plan(self.plan, make_blank_targets(self.plan))
            self._measures[key] = list_expected_measures(dry_plan, job, DUMMY_CLIENT)
        return self._measures[key]

    def limit_reply_bytes(self, job: Job) -> int:
        """Return the maximum size of the reply to a job in bytes; larger replies are not requested."""
        if job.kind != "train":
            return MAX_REPLY_HEADER_BYTES
        form, rows_vary = self.get_form(job.client), self.plan.algorithm.rows_vary
        more = form.largest.tensors.only(*rows_vary)
        of_rows = sum(2 * form.initial[get_shared_name(name)].nbytes for name in more)
        return form.nbytes + of_rows + MAX_REPLY_HEADER_BYTES

    def check_reply(self, reply: Reply, job: Job) -> Reply:
        """Return a board's reply with the server's own weight; raise CodecError if it is not valid."""
        if (reply.client, reply.kind, reply.turn) != (job.client, job.kind, job.turn):
            raise CodecError("the reply belongs to another job")
        if job.kind == "train":
            self.check_aside(reply.aside, job)
            self.check_tensors(reply.tensors, job)
        elif reply.tensors or reply.aside:
            raise CodecError("the reply to an evaluation must not contain tensors")
        check_metrics(self.plan, reply.metrics, job.client)
        if job.kind != "train":
            self.check_measures(reply, job)
        return self.set_trusted_weight(reply, job)

    def check_measures(self, reply: Reply, job: Job) -> None:
        """Raise CodecError unless a reply has exactly the expected scores and, at the end, the digest."""
        federation = self.plan.federation.include_new_clients()
        tested, held_out = (federation.sizes(p)[job.client] for p in ("test", "validation"))
        expected = self.list_measures(job)
        if held_out:
            expected |= {f"{measure}_valid" for measure in expected}
        for name in sorted(expected - reply.metrics.keys()):
            raise CodecError(f"metric {name!r} is missing in the reply to an evaluation")
        # without test examples, a board cannot know whether G needs personal parameters
        for name in sorted({"G", "P"} & reply.metrics.keys() - expected) if tested else ():
            raise CodecError(f"metric {name!r} is not measured in this evaluation")
        if job.t == self.plan.rounds and not reply.kept:
            raise CodecError("the reply to the last evaluation has no digest of the memory")

    def check_tensors(self, found: Tensors, job: Job) -> None:
        """Raise CodecError for a reply's missing, unknown, malformed or too large tensors.

        Shapes and types are those after the client's protections, norms those after decoding.
        """
        form = self.get_form(job.client)
        expected_tensors = form.largest.tensors
        for name, v in found.items():
            expected = expected_tensors.get(name)
            if expected is None:
                raise CodecError(f"tensor {name!r} is not expected")
            if matches_any(name, self.plan.algorithm.rows_vary):
                check_rows(name, v, expected, form.initial)
            elif v.shape != expected.shape or v.dtype != expected.dtype:
                raise CodecError(
                    f"tensor {name!r} is {v.dtype} {tuple(v.shape)},"
                    f" expected {expected.dtype} {tuple(expected.shape)}"
                )
            if v.is_floating_point() and not bool(torch.isfinite(v).all()):
                raise NotFiniteError(f"tensor {name!r} holds NaN or infinity")
        if missing := sorted(form.required - set(found)):
            raise CodecError(f"tensor {missing[0]!r} is missing")
        samples = self.plan.federation.include_new_clients().sizes()[job.client]
        restored = restore_tensors(self.plan, found, job.tensors)
        self.check_norms(restored, job.tensors, samples, "the tensors that were sent")
        # an absolute limit too: otherwise the model could grow in every round
        self.check_norms(restored, form.initial, samples, "the initial tensors")

    def check_aside(self, found: Tensors, job: Job) -> None:
        """Raise CodecError unless a reply has exactly the personal tensors that the run requests for G.

        Their norm is not limited, because no client trains on them.
        """
        expected = self.get_form(job.client).largest.aside
        if found and not expected:
            raise CodecError("the reply holds personal tensors, which must stay on the board")
        check_same_structure(found, expected)
        for name, v in found.items():
            if v.is_floating_point() and not bool(torch.isfinite(v).all()):
                raise NotFiniteError(f"tensor {name!r} holds NaN or infinity")

    def check_norms(self, found: Tensors, sent: Tensors, samples: int, what: str) -> None:
        """Raise CodecError if an update's norm is too large; extra tensors may be sums over examples."""
        common = {k for k in found if k in sent}
        before, after = compute_norm(sent, common), compute_norm(found, common)
        if after > self.max_norm_ratio * (1 + before):
            raise CodecError(
                f"the update has norm {after:.3g}, over {self.max_norm_ratio:g} times that of {what}"
            )
        extra = compute_norm(found, found.keys() - common)
        limit = self.max_norm_ratio * (1 + before) * (1 + samples)
        if extra > limit:
            raise CodecError(f"the extra tensors have norm {extra:.3g}, over {limit:.3g}")

    def check_merged(self, after: Server) -> None:
        """Raise CodecError if the norm of the merged model is too large."""
        initial = self.initial_server.model
        common = [k for k in after.model if k in initial]
        norm = compute_norm(after.model, common)
        limit = self.max_norm_ratio * (1 + compute_norm(initial, common))
        if norm > limit:
            raise CodecError(
                f"the merged model has norm {norm:.3g}, over {self.max_norm_ratio:g} times that of"
                " the initial one"
            )

    def set_trusted_weight(self, reply: Reply, job: Job) -> Reply:
        """Return a reply with the weight that the server computes; raise CodecError for false counts."""
        samples = self.plan.federation.include_new_clients().sizes()[job.client]
        if job.kind != "train":
            return reply
        if reply.samples != samples:
            raise CodecError(f"the reply claims {reply.samples} examples instead of {samples}")
        weight = samples if self.plan.weights == "samples" else 1
        limit = max(1, samples) * 1000 * max(1, self.plan.training.epochs)
        if not 0 <= reply.examples <= limit:
            raise CodecError(f"the reply claims {reply.examples} processed examples")
        return replace(reply, weight=weight)


def get_shared_name(name: str) -> str:
    """Extract the shared tensor's name from the name of a reply's tensor with a variable number of rows."""
    return name.partition("/")[2]


def check_rows(name: str, found: Tensor, expected: Tensor, sent: Tensors) -> None:
    """Raise CodecError if rows in a reply have the wrong length or type, or if there are more than the tensor needs."""
    if found.shape[1:] != expected.shape[1:] or found.dtype != expected.dtype or not found.dim():
        raise CodecError(
            f"tensor {name!r} is {found.dtype} {tuple(found.shape)}, expected rows of"
            f" {expected.dtype} {tuple(expected.shape[1:])}"
        )
    most = sent[get_shared_name(name)].numel()
    if found[1:].numel() >= most:
        raise CodecError(f"tensor {name!r} has {len(found)} rows, more than its {most} values need")


def compute_norm(tensors: Tensors, names: Iterable[str]) -> float:
    """Return the norm of a reply's floating-point tensors, joined into one vector."""
    real = [tensors[k].double() for k in names if tensors[k].is_floating_point()]
    return math.sqrt(sum(float(v.square().sum()) for v in real))
