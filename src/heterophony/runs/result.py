"""The result of a run: its numbers, its events and its trained models."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.adapters import merge_adapters
from ..core.algorithm import Server
from ..core.errors import ConfigError, DataError, FolderError
from ..core.randomness import seeded
from ..core.scores import SCORES
from ..core.temporary import remove_temporary_folder
from ..core.tensors import Memory, Tensors
from ..jobs.client_store import load_board_memory
from ..jobs.plan import Job, Plan
from ..jobs.work import select_tensors_after_joining
from .curves import Accuracy, Curve, Fairness, compute_curves, compute_loss_curves
from .events import (
    MEASURES,
    VALIDATION_MEASURES,
    Confusions,
    Event,
    find_kept_round,
    find_last_evaluation,
    get_end,
    get_start,
    select_evaluations,
)
from .folder import RunFolder
from .model import ExamplesWithheldError, Model, withhold_data
from .summary import (
    ClientResult,
    MetricCurve,
    Summary,
    compute_metric_curves,
    describe_chance_level,
    describe_run_state,
    summarise_so_far,
)

if TYPE_CHECKING:
    from .curve_figure import NotebookFigure


def iterate_client_rows(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Yield a row per client and evaluation: round, client, test size, and scores of G and P.

    Losses are named ``G_loss`` and ``P_loss``; further metrics have names such as ``P_f1``. A value that
    was not measured is None. If the run has validation examples, the same columns exist for them. For tasks
    other than classification, columns hold scores instead of correct answers and accuracies.
    """
    start = get_start(events)
    counted = "task" not in start
    validation = start.get("validation")
    for event in select_evaluations(events):
        for i, client in enumerate(start["clients"]):
            row: dict[str, Any] = {"round": event["t"], "client": client, "test": start["test"][i]}
            for measure in MEASURES:
                add_score_to_row(row, measure, event[measure], i, row["test"], counted)
            if validation is not None:
                row["validation"] = validation[i]
                for held_out in VALIDATION_MEASURES:
                    add_score_to_row(row, held_out, event.get(held_out), i, validation[i], counted)
            for measured, losses in event.get("loss", {}).items():
                row[f"{measured}_loss"] = losses[i]
            for measured, values in event.get("metrics", {}).items():
                row |= {f"{measured}_{name}": v[i] for name, v in values.items()}
            yield row


def add_score_to_row(
    row: dict[str, Any],
    name: str,
    counts: Sequence[float | None] | None,
    i: int,
    examples: int,
    counted: bool,
) -> None:
    """Add the score of one measure, such as G, to a client's row in the table of a result."""
    correct = None if counts is None else counts[i]
    if counted:
        row[f"{name}_correct"] = correct
    row[name] = None if correct is None or not examples else correct / examples


def make_frame(rows: Iterator[dict[str, Any]]) -> Any:
    """Make a pandas DataFrame of a result's rows; counts stay integers even if some are missing."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ConfigError(
            "result.to_frame() needs pandas; install it with pip install 'heterophony[pandas]',"
            " or use result.rows()"
        ) from None
    frame = pandas.DataFrame(list(rows))
    counts = [name for name in frame.columns if name.endswith("_correct")]
    return frame.astype(dict.fromkeys(counts, "Int64"))


def sum_confusions(confusions: Confusions, classes: int) -> NDArray[np.int64]:
    """Add up the clients' confusions to a matrix of true classes (rows) and predicted classes (columns)."""
    counts = np.zeros((classes, classes), np.int64)
    for true, predicted, examples in (cell for cells in confusions for cell in cells or ()):
        counts[true, predicted] += examples
    return counts


def list_class_accuracies(counts: NDArray[np.int64]) -> list[float | None]:
    """List the accuracy of each class in a confusion matrix; None for a class without examples."""
    rows = zip(counts.diagonal().tolist(), counts.sum(axis=1).tolist(), strict=True)
    return [right / examples if examples else None for right, examples in rows]


SHOWN_CLIENTS = 3  # shown when a table of clients is printed


class Result:
    """The result of a run: its numbers, its events and its trained models.

    An unfinished run has the numbers so far: ``finished`` is False, and ``state`` has the round.
    Numbers need no data; ``personal`` and ``generic`` read the data again. Models are taken from the
    last round or, with ``evaluation.keep_best``, from the best round on validation examples.
    """

    def __init__(
        self, folder: RunFolder, build_plan: Callable[[], Plan], temporary: Path | None = None
    ) -> None:
        self.folder, self._run_folder, self._build_plan = folder.path, folder, build_plan
        if temporary is not None:
            weakref.finalize(self, remove_temporary_folder, temporary)

    # Numbers --------------------------------------------------------------------------------
    @cached_property
    def events(self) -> list[Event]:
        """The events of the run, read on first access."""
        return list(self._run_folder.iterate_events())

    @cached_property
    def summary(self) -> Summary:
        """All numbers; for an unfinished run, they are computed as if the run stopped now."""
        summary = summarise_so_far(self.events)
        if summary is None:
            raise FolderError(f"{self.folder}: nothing was measured yet ({self.state})")
        return summary

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return get_end(self.events) is not None

    @property
    def state(self) -> str:
        """``finished``, or ``round 3 of 20``."""
        return describe_run_state(self.events)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return get_start(self.events)["algorithm"]

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Points (round, accuracy) of ``G``, ``P``, ``P_local``, ``G_valid`` and ``P_valid``."""
        return compute_curves(self.events)

    @property
    def metric_curves(self) -> dict[str, dict[str, MetricCurve]]:
        """Points (round, value) of further metrics, as in ``result.metric_curves["f1"]["P"]``."""
        return compute_metric_curves(self.events)

    @property
    def loss_curves(self) -> Mapping[str, Curve]:
        """Points (round, test loss) of ``G`` and ``P``, and of validation examples if there are any."""
        return compute_loss_curves(self.events)

    @property
    def loss(self) -> dict[str, float | None]:
        """The test loss at the end, as in ``result.loss["P"]``; None if it is not finite."""
        return self.summary.loss

    @property
    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Further metrics at the end, as in ``result.metrics["f1"]["P"]``."""
        return self.summary.metrics

    @property
    def G(self) -> Accuracy | None:
        """Accuracy of the generic model over the rounds; None if there is no such model."""
        return self.summary.G

    @property
    def P(self) -> Accuracy:
        """Accuracy of the personal models over the rounds, pooled over test examples."""
        return self.summary.P

    @property
    def P_mean(self) -> Accuracy:
        """P as the mean over clients, not over test examples."""
        return self.summary.P_mean

    @property
    def clients(self) -> ClientTable:
        """Each client's result at the end, by name."""
        return ClientTable(self.summary.clients)

    @property
    def fairness(self) -> dict[str, Fairness | None]:
        """How much accuracies differ between clients, as in ``result.fairness["P"]``."""
        return self.summary.fairness

    @property
    def model_sha256(self) -> str:
        """The digest of all trained models: equal runs have equal digests."""
        return self.summary.model_sha256

    def confusion(self, measure: str = "P", client: str | int | None = None) -> NDArray[np.int64]:
        """Return how often each class (row) was predicted as each class (column) in the last evaluation.

        The run needs ``metrics=["confusion"]``. Without ``client``, the counts of all clients are added up.
        """
        start, last = get_start(self.events), find_last_evaluation(self.events)
        held = last.get("confusion", {}).get(measure) if last else None
        if held is None:
            raise ConfigError(
                f"the run has no confusions of '{measure}'; run it with evaluation.metrics ="
                " ['confusion'] (metrics=['confusion'] in Python)"
            )
        if client is not None and str(client) not in start["clients"]:
            raise DataError(f"there is no client '{client}'")
        chosen = held if client is None else [held[start["clients"].index(str(client))]]
        return sum_confusions(chosen, len(start["classes"]))

    def class_accuracy(
        self, measure: str = "P", client: str | int | None = None
    ) -> dict[str, float | None]:
        """Return the accuracy of each class; None for a class without test examples."""
        counts = self.confusion(measure, client)
        return dict(
            zip(get_start(self.events)["classes"], list_class_accuracies(counts), strict=True)
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every client and evaluated round, as plain dicts."""
        return list(iterate_client_rows(self.events))

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for every client and evaluated round."""
        return make_frame(iterate_client_rows(self.events))

    # Display --------------------------------------------------------------------------------
    def __repr__(self) -> str:
        shown = self.algorithm if self.finished else f"{self.algorithm}, unfinished, {self.state}"
        summary = summarise_so_far(self.events)
        if summary is None:
            return f"<Result {shown}: nothing measured yet>"
        g = "no G" if summary.G is None else f"G {summary.G.last:.4f}"
        chance = describe_chance_level(summary, get_start(self.events))
        doubt = f"; {chance}" if chance else ""
        return f"<Result {shown}: {g}, P {summary.P.last:.4f} (last){doubt}>"

    def _repr_html_(self) -> str:
        summary = summarise_so_far(self.events)
        measured = {"G": summary.G, "P": summary.P} if summary else {}
        rows = "".join(
            f"<tr><th>{name}</th><td>{a.best:.2%} (round {a.best_round})</td>"
            f"<td>{a.last:.2%}</td><td>{a.last10.mean:.2%} ± {a.last10.std:.2%}</td></tr>"
            for name, a in measured.items()
            if a is not None
        )
        start = get_start(self.events)
        title = f"{self.algorithm}, {self.state}, seed {start['seed']}"
        head = "<tr><th></th><th>best</th><th>last</th><th>last 10</th></tr>"
        table = f"<table>{head}{rows}</table>" if rows else "<p>nothing measured yet</p>"
        chance = describe_chance_level(summary, start) if summary else None
        doubt = f"<p>{escape(chance)}</p>" if chance else ""
        return f"<p><b>{escape(title)}</b>, {len(start['clients'])} clients</p>{table}{doubt}"

    def plot(self) -> NotebookFigure:
        """Draw the curves of G and P over the rounds; return the matplotlib figure."""
        from .curve_figure import draw_curves  # matplotlib takes long to import

        score = SCORES.get(get_start(self.events).get("task", "classification"), "score")
        return draw_curves(self.curves, f"{self.algorithm}, {self.state}", score)

    # Models ---------------------------------------------------------------------------------
    @cached_property
    def plan(self) -> Plan:
        """The plan of the run, including its data."""
        return self._build_plan()

    def personal(
        self, client: str | int, board: str | Path | None = None, merge: bool = False
    ) -> Model:
        """Return the personal model of a client; with ``merge``, low-rank adapters are merged into its weights.

        After a run on boards, the model is on the client's board: ``board`` is the folder of that board
        (``--folder``), or a copy of it.
        """
        name, plan = str(client), self.plan
        if name not in plan.federation.train:
            raise DataError(f"there is no client '{name}'")
        if plan.clients_on_boards:
            memory = load_board_memory(self.folder, board, name, before=self._server.t)
            return self._build_model(name, memory, merge)
        joined = name in plan.federation.new  # new clients train after the last round
        if joined and not self.finished:
            raise DataError(f"client '{name}' joins after training, and the run is not finished")
        last = self._server.t + joined
        memory = self._run_folder.client_store.load_memory(name, before=last)
        return self._build_model(name, memory, merge)

    def generic(self, merge: bool = False) -> Model:
        """Return the generic model; with ``merge``, low-rank adapters are merged into its weights."""
        if not self.plan.algorithm.common:
            raise DataError(f"{self.algorithm} has no generic model")
        if self.plan.clients_on_boards and not self.curves["G"]:
            raise DataError(
                f"the generic model of {self.algorithm} needs personal parameters, which are on"
                " the boards; see evaluation.share_personal"
            )
        server = self._server
        return self._build_model(None, {"net": server.average | server.model}, merge)

    @property
    def _server(self) -> Server:
        """The server's state after the round whose models are kept."""
        sizes, kept = self.plan.federation.sizes(), find_kept_round(self.events)
        if kept is not None:
            return self.plan.complete_server(self._run_folder.load_commit(kept, sizes))
        server = self._run_folder.load_newest_commit(sizes)
        if server is None:
            raise FolderError(f"{self.folder} has no trained model yet ({self.state})")
        return self.plan.complete_server(server)

    def _build_model(self, client: str | None, memory: Memory, merge: bool) -> Model:
        """Build the personal model of a client, or the generic model if ``client`` is None."""
        plan, server = self.plan, self._server
        name = client or plan.federation.clients[0]
        received = plan.algorithm.send(server, client) if client is not None else Tensors()
        if client in plan.federation.new:
            received = select_tensors_after_joining(plan.algorithm, received, memory)
        self._check_model(client, received.without("*/*") | memory.get("net", Tensors()))
        job = Job(kind="evaluate", t=server.t, client=name, tensors=received)
        built = plan.build_client(
            job, memory, self._run_folder.client_store, generic=client is None
        )
        if not len(built.data.train):  # the examples are on a board: using them must be an error
            built.data = withhold_data(built.data)
        try:
            if client is not None:
                with seeded(plan.seed, "tune", server.t, client):  # as when P was measured
                    plan.algorithm.adapt(built)
            if merge:
                merge_adapters(built.net)
            return Model(plan, built, generic=client is None)
        except ExamplesWithheldError:
            raise DataError(
                f"a model of {self.algorithm} needs examples of client '{name}', which are on its"
                " board; pass them to hp.load as federation"
            ) from None

    def _check_model(self, client: str | None, known: Tensors) -> None:
        """Raise DataError if the plan's net does not match the run's tensors, or lacks initial weights."""
        began = get_start(self.events).get("start_sha256")
        if began in (None, self.plan.start_sha256):
            return
        plan = self.plan
        net = plan.template if client is None else plan.get_template(client)
        initial = Tensors(net.state_dict())
        if any(k not in initial or v.shape != initial[k].shape for k, v in known.items()):
            raise DataError(
                f"the model does not match the run in {self.folder}; pass the model that the run"
                " was started with"
            )
        # the run folder does not contain given tensors
        if not known.keys() >= plan.list_kinds(net, 0).keys():
            raise DataError(
                f"client '{client}' has parameters that were never trained; pass the model with"
                " the weights the run was started with"
            )


class ClientTable(dict[str, ClientResult]):
    """The clients' results by name; ``clients[7]`` is ``clients["7"]``, and printing shows the first few."""

    def __missing__(self, client: object) -> ClientResult:
        if isinstance(client, int) and str(client) in self:
            return self[str(client)]
        raise KeyError(client)

    def __repr__(self) -> str:
        shown = [f"{k!r}: {v.accuracy:.4f}" for k, v in list(self.items())[:SHOWN_CLIENTS]]
        more = [f"… {len(self) - SHOWN_CLIENTS} more"] if len(self) > SHOWN_CLIENTS else []
        return f"<{len(self)} clients, accuracy of P: {', '.join([*shown, *more])}>"
