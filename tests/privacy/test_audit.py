"""The privacy audit: sent parameters, gradients, attacks, quality measures, and the command."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import Fatal, digits, net_with_batch_norm, replies
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.cli import app
from heterophony.core.errors import FolderError
from heterophony.core.files import unpack
from heterophony.core.tensors import Tensors
from heterophony.data.sources import read_source
from heterophony.engines.base import EngineSpec, create_engine
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job, Plan
from heterophony.models import get_model_builder
from heterophony.papers.evidence import read_stored_runs
from heterophony.papers.table import load_table
from heterophony.privacy.attack_job import AttackCase, AttackSettings, CaseAttack, GradientInversion
from heterophony.privacy.attacks import (
    DLG,
    MAX_PSNR,
    AttackTarget,
    InvertingGradients,
    Reconstruction,
    StartingPoint,
    build_insider,
    build_outsider,
    compute_gradients,
    compute_update,
    cosine_distance,
    draw_noise,
    find_last_bias,
    infer_labels,
    list_sent_parameters,
    make_reference_images,
    psnr,
    select_best,
    squared_distance,
    ssim,
    total_variation,
)
from heterophony.privacy.audit import Snapshots, match_images, match_labels
from heterophony.privacy.run_audit import describe_audit, get_audit_preset, is_audit
from heterophony.privacy.summary import (
    PRIVATE_KNOWLEDGE,
    collect_losses,
    find_rounds_at_losses,
    list_common_levels,
    summarise_audit,
)
from heterophony.report.page.html import render_report
from heterophony.results.runs import load_runs

MEDIUM_AUDITS = Path(__file__).parents[2] / "results" / "audit-medium"
SMALL = ("data.name=digits", "data.clients=3", "model.name=digitsnet", "training.epochs=3",
         "training.steps=3", "engine.name=serial")  # fmt: skip
GUESSES = ("fresh", "initial")
FEW = hp.Training(epochs=3, steps=3, batch=8, lr=0.05)


def call(out: Path, *words: str, also: tuple[str, ...] = ()):
    pairs = [w for pair in (*SMALL, *also) for w in ("-c", pair)]
    few = ("--rounds", "1", "--clients", "1", "--images", "1", "--iterations", "3")
    return CliRunner().invoke(app, ["audit", *few, *words, *pairs, "--out", str(out), "--json"])


def audited(out: Path, *words: str, also: tuple[str, ...] = ()) -> dict:
    found = call(out, *words, also=also)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def plan_of(name: str, **changes) -> Plan:
    """A run that has not started."""
    result = hp.run(get_algorithm_class(name)(**changes), digits(), model="digitsnet", rounds=0,
                    training=FEW, participation=1.0)  # fmt: skip
    return result.plan


def first(plan: Plan) -> Job:
    client, server = plan.federation.clients[0], plan.create_initial_server()
    sent = plan.algorithm.send(server, client)
    return Job(
        kind="train",
        t=0,
        client=client,
        tensors=sent,
        generic_model=server.average | server.model,
        keeps_memory=False,
    )


# Numbers ------------------------------------------------------------------------------------


def image(seed: int) -> torch.Tensor:
    return torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("a", "b"), [(image(i), image(i + 10)) for i in range(5)])
def test_psnr_is_symmetric_capped_and_a_fixed_step_from_the_printed_formula(a, b):
    assert psnr(a, a) == MAX_PSNR
    assert psnr(a, b) == psnr(b, a) >= 0
    printed = -10 * math.log10((a.double() - b.double()).square().sum().item() / (12 * 12))
    assert psnr(a, b) == pytest.approx(printed + 4.7712, abs=1e-4)
    assert ssim(a, a) == pytest.approx(1.0, abs=1e-12)
    assert ssim(a, b) == pytest.approx(ssim(b, a), abs=1e-12)


def test_levels_that_can_be_computed_by_hand():
    black, white = torch.zeros(1, 8, 8), torch.ones(1, 8, 8)  # smaller than the window of SSIM
    assert psnr(black, white) == 0
    assert psnr(black, white / 10) == pytest.approx(20)
    assert psnr(black - 5, white + 5) == 0  # what is outside is cut
    assert ssim(black, white) == pytest.approx(1e-4 / (1 + 1e-4))
    flat = make_reference_images(torch.stack([white[0], black[0]]), "key")
    assert psnr(flat["grey"], torch.stack([white[0], black[0]])) == pytest.approx(6.0206, abs=1e-4)
    assert psnr(flat["mean colour"], torch.stack([white[0], black[0]])) == MAX_PSNR


def test_a_restart_is_chosen_by_its_match_alone_and_images_of_a_batch_find_their_originals():
    x = torch.zeros(1)
    found = [
        Reconstruction(x, x, 0.5),
        Reconstruction(x, x, 0.1, finite=False),
        Reconstruction(x, x, 0.2),
        Reconstruction(x, x, 0.2),
    ]
    assert select_best(found)[0] == 2
    true = torch.stack([torch.full((1, 2, 2), v) for v in (0.1, 0.9)])
    assert match_images(true, true.flip(0)) == [1, 0]


# What is seen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n for n in ALGORITHM_CLASSES if not get_algorithm_class(n).pooled]
)
def test_what_is_seen_is_the_recorded_traffic_and_gradients_of_it_can_be_computed(
    name, monkeypatch
):
    how = {"model": "digitsnet", "rounds": 1, "participation": 1.0, "training": FEW}
    result, rounds = replies(monkeypatch, name, digits(clients=2), **how)
    plan, job = result.plan, first(result.plan)
    place = result._run_folder.client_store
    names = list_sent_parameters(plan, job, place)
    parameters = dict(plan.template.named_parameters())
    assert names == sorted(k for k in rounds[0][0].tensors if k in parameters)
    assert names or name in ("local", "feddistill", "fedgh", "fedproto", "fedtgp")
    x, y = plan.federation.data(job.client).train.batch(torch.arange(1))
    strangers = [build_outsider(plan, job, guess) for guess in GUESSES]
    for client in (build_insider(plan, job, place), *strangers) if names else ():
        square = float(compute_gradients(client, names, x, y).square())
        assert square > 0 or name == "fedsa_lora"  # B = 0 at first, so A has no gradient
        assert square < math.inf


def test_personal_parameters_are_not_seen(tmp_path):
    def seen(name, **changes):
        plan = plan_of(name, **changes)
        return set(
            list_sent_parameters(
                plan, first(plan), FolderClientStore(tmp_path / "kept", tmp_path / "scratch")
            )
        )

    assert not [k for k in seen("fedper") if k.startswith("head.")]
    assert not [k for k in seen("fedrod") if k.startswith("own.")]
    factors = [k for k, _ in plan_of("feddecomp").template.named_parameters() if ".weight.0." in k]
    assert sorted(seen("feddecomp", mode="reverse")) == sorted(factors)


@pytest.mark.parametrize("name", ["fedper", "feddecomp", "fedbn", "pfedgate"])
def test_both_guesses_of_personal_parameters_are_the_same_rule_for_every_algorithm(name):
    net = net_with_batch_norm if name == "fedbn" else "digitsnet"
    plan = hp.run(name, digits(), model=net, rounds=1, training=FEW, participation=1.0).plan
    job = first(plan)
    sent = {k: v + 1 for k, v in job.tensors.items() if v.is_floating_point()}
    job = replace(job, tensors=job.tensors | Tensors(sent))
    personal = [k for k, _ in plan.template.named_parameters() if k not in job.tensors]
    assert personal
    fresh, initial = (build_outsider(plan, job, guess).net.state_dict() for guess in GUESSES)
    before = plan.template.state_dict()
    assert all(torch.equal(initial[k], before[k]) for k in personal)
    drawn = [k for k in personal if not torch.equal(fresh[k], before[k])]
    # what begins at 1 or 0 does so anew: BatchNorm, the second factor of a low-rank part
    assert [k for k in personal if before[k].unique().numel() > 1] == drawn
    for net in (fresh, initial):
        assert all(torch.equal(net[k], v) for k, v in job.tensors.items() if k in net)


def test_attackers_with_the_same_gradient_share_their_attack(tmp_path, monkeypatch):
    """FedDecomp's low-rank part is zero by both guesses, FedRoD's own head passes no gradient."""
    started = []
    run_restarts = CaseAttack.run_restarts
    monkeypatch.setattr(
        CaseAttack,
        "run_restarts",
        lambda self: started.append(self.case.algorithm) or run_restarts(self),
    )
    found = audited(tmp_path, "fedavg", "fedper", "fedrod", "feddecomp")
    assert Counter(started) == {"fedavg": 1, "fedper": 3, "fedrod": 2, "feddecomp": 2}
    images = {(r["algorithm"], r["private"]): r["sha256"] for r in found["attacks"]}
    for name in ("fedrod", "feddecomp"):
        assert images[name, "fresh"] == images[name, "initial"]
    assert images["fedper", "fresh"] != images["fedper", "known"]


def test_the_label_of_one_image_is_the_smallest_gradient_of_the_last_bias(tmp_path):
    plan = plan_of("fedavg")
    job, bias = first(plan), find_last_bias(plan.template)
    client = build_insider(plan, job, FolderClientStore(tmp_path / "kept", tmp_path / "scratch"))
    train = plan.federation.data(job.client).train
    for i in range(8):
        x, y = train.batch(torch.tensor([i]))
        assert torch.equal(infer_labels(compute_gradients(client, [bias], x, y)[bias], 1), y)
    x, y = train.batch(torch.arange(6))  # before training, chances are nearly equal
    assert torch.equal(
        infer_labels(compute_gradients(client, [bias], x, y)[bias], 6), y.sort().values
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 99))
def test_labels_of_several_images_are_exact_where_chances_differ_by_less_than_one_image(y, seed):
    labels = torch.tensor(y)
    spread = torch.rand(5, generator=torch.Generator().manual_seed(seed)) * 0.99 / len(y)
    gradient = spread - torch.bincount(labels, minlength=5) / len(y)
    assert torch.equal(infer_labels(gradient, len(y)), labels.sort().values)
    assert match_labels(labels, labels.flip(0)) == [True] * len(y)


def test_labels_are_counted_as_often_as_they_were_found():
    assert match_labels(torch.tensor([1, 1, 2]), torch.tensor([2, 1, 3])) == [True, False, True]


# Attacks ------------------------------------------------------------------------------------


def target_of(name: str, tmp_path: Path, dtype: torch.dtype = torch.float32):
    plan = plan_of(name)
    job = first(plan)
    client = build_insider(plan, job, FolderClientStore(tmp_path / "kept", tmp_path / "scratch"))
    client.net.to(dtype)
    x, y = plan.federation.data(job.client).train.batch(torch.arange(1))
    x, names = x.to(dtype), list(job.tensors)
    seen = compute_gradients(client, names, x, y)
    own = partial(compute_gradients, client, names, differentiable=True)
    return AttackTarget(seen, own, -torch.ones(1), torch.ones(1)), x, client, y


def test_the_true_image_matches_what_was_seen(tmp_path):
    target, x, _, y = target_of("fedavg", tmp_path)
    assert abs(cosine_distance(target, x, y).item()) <= 1e-6
    assert squared_distance(target, x, y).item() == 0
    assert DLG(2)(target, StartingPoint(x, y)).loss == 0


def test_the_slope_of_an_image_is_a_true_second_derivative(tmp_path):
    target, x, _, y = target_of("fedavg", tmp_path, torch.float64)
    draw = torch.Generator().manual_seed(0)
    at = torch.rand(x.shape, generator=draw, dtype=torch.float64).requires_grad_(True)
    (slope,) = torch.autograd.grad(cosine_distance(target, at, y) + 0.1 * total_variation(at), at)
    way = torch.rand(x.shape, generator=draw, dtype=torch.float64)
    ends = [
        (cosine_distance(target, v, y) + 0.1 * total_variation(v)).item()
        for v in (at + 1e-6 * way, at - 1e-6 * way)
    ]
    assert (slope * way).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


def test_dlg_finds_images_and_labels_of_a_smooth_net_that_it_is_not_told(tmp_path):
    torch.manual_seed(0)
    weight = Tensors({"w": torch.randn(10, 16), "b": torch.randn(10)})

    def gradient(x, y):
        live = weight.map(lambda v: v.clone().requires_grad_(True))
        out = torch.nn.functional.linear(x.flatten(1).sigmoid(), live["w"], live["b"])
        value = torch.nn.functional.cross_entropy(out, y)
        found = torch.autograd.grad(value, list(live.values()), create_graph=True)
        return Tensors(dict(zip(live, found, strict=True)))

    x, y = torch.rand(1, 1, 4, 4), torch.tensor([7])
    target = AttackTarget(gradient(x, y).map(torch.Tensor.detach), gradient, x, x)
    found = DLG(30)(target, StartingPoint(draw_noise(x.shape, "x"), draw_noise((1, 10), "y")))
    assert torch.equal(found.labels, y)
    assert psnr(found.images[0], x[0]) > 40


def test_more_iterations_match_better_and_stay_in_the_box(tmp_path):
    target, x, _, y = target_of("fedavg", tmp_path)
    start = StartingPoint(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), y)
    few, many = (
        InvertingGradients(2, 0.0)(target, start),
        InvertingGradients(60, 0.0)(target, start),
    )
    assert many.loss < few.loss
    assert many.images.abs().max() <= 1


def test_several_steps_are_the_mean_of_their_gradients(tmp_path):
    _, x, client, y = target_of("fedavg", tmp_path)
    names = [k for k, _ in client.net.named_parameters()]
    one = compute_gradients(client, names, x, y)
    assert all(torch.equal(v, one[k]) for k, v in compute_update(client, names, x, y, 1).items())
    moved = compute_update(client, names, x, y, 3)
    cosine = moved.dot(one) / (moved.square() * one.square()).sqrt()
    assert 0.5 < float(cosine) < 1


def test_an_attack_on_nothing_fails_and_says_so(tmp_path):
    also = ("training.steps=0", "training.epochs=1")
    content = audited(tmp_path, "fedavg", also=also)
    assert [r["failed"] for r in content["rows"]] == [1, 1, 1]
    assert "reached infinity or NaN" in content["notes"][0]


# The command --------------------------------------------------------------------------------


def shas(content: dict) -> list[tuple]:
    keys = ("round", "client", "image", "private", "sha256", "psnr", "ssim", "matching")
    return [tuple(r[k] for k in keys) for r in content["attacks"]]


def test_a_low_rank_part_of_zero_gives_the_very_images_of_fedavg(tmp_path):
    words = ("--rounds", "0,1", "--images", "2")
    plain = audited(tmp_path / "a", "fedavg", *words)
    zero = audited(tmp_path / "b", "feddecomp", *words, also=("algorithm.own_epochs=0",))
    assert len(plain["attacks"]) == 2 * 2 * len(PRIVATE_KNOWLEDGE)
    assert shas(zero) == shas(plain)


def test_a_whole_audit_is_the_same_in_several_processes_and_after_any_end(tmp_path, monkeypatch):
    words = ("fedper", "fedavg", "--images", "2")
    whole = audited(tmp_path / "a", *words)
    names = [(r["algorithm"], r["private"], r["attacks"]) for r in whole["rows"]]
    assert names == [(a, p, 2) for a in ("fedper", "fedavg") for p in PRIVATE_KNOWLEDGE]
    assert {o["below"] for o in whole["orderings"]} == set()  # no feddecomp here
    assert (tmp_path / "a" / "audit.png").stat().st_size > 1000
    pool = ("engine.name=pool", "engine.workers=2")
    assert audited(tmp_path / "b", *words, also=pool) == whole

    keep = Snapshots.save_round
    monkeypatch.setattr(
        Snapshots, "save_round", lambda self, t: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert call(tmp_path / "c", *words).exit_code == 130
    monkeypatch.setattr(Snapshots, "save_round", keep)
    audited(tmp_path / "c", *words)
    lines = tmp_path / "c" / "attacks.jsonl"
    text = lines.read_bytes().splitlines(keepends=True)
    lines.write_bytes(b"".join(text[:-1]) + text[-1][:50])  # died while it wrote the last line
    done = []
    invert = GradientInversion.__call__
    monkeypatch.setattr(
        GradientInversion, "__call__", lambda *a: done.append(a[0].case.key) or invert(*a)
    )
    assert audited(tmp_path / "c", *words) == whole
    assert done == [("fedavg", 1, "0", 1)]
    assert audited(tmp_path / "c", *words) == whole
    assert len(done) == 1


def test_a_worker_killed_in_an_attack_is_replaced_and_the_images_are_the_same(tmp_path):
    plan = plan_of("fedavg")
    job, place = first(plan), FolderClientStore(tmp_path / "kept", tmp_path / "scratch")
    case = AttackCase("fedavg", 0, job.client, 0, 1, tuple(list_sent_parameters(plan, job, place)))
    task = GradientInversion(case, AttackSettings(iterations=2))
    fatal = Fatal(task, tmp_path / "killed")
    with create_engine(EngineSpec("pool", 1), plan, place) as made:
        (found,) = made.run([replace(job, kind="other", custom_work=fatal)])
    with create_engine(EngineSpec(), plan, place) as made:
        (alone,) = made.run([replace(job, kind="other", custom_work=task)])
    assert fatal.trace.exists()
    assert found.tensors.digest() == alone.tensors.digest()


def test_batches_steps_restarts_dlg_and_inferred_labels_are_noted(tmp_path):
    words = ("fedper", "--images", "3", "--batch", "2", "--steps", "2", "--restarts", "2")
    found = audited(tmp_path / "a", *words)
    assert [r["image"] for r in found["attacks"]] == [0, 1, 2] * 3
    assert "as if it were one gradient" in found["notes"][0]
    words = ("fedper", "fedavg", "--attack", "dlg", "--labels", "inferred", "--iterations", "1")
    found = audited(tmp_path / "b", *words)
    assert found["notes"][0].startswith("fedper: the bias of the last layer is not sent")
    assert found["notes"][1] == "labels inferred: 3 of 3 right"
    words = ("fedrod", "--attack", "dlg", "--labels", "joint", "--iterations", "1")
    found = audited(tmp_path / "c", *words, "--batch", "2", "--images", "2")
    assert found["notes"][0].startswith("labels optimised with the images: ")
    refused = call(tmp_path / "d", "gpfl", *words[1:])
    assert refused.exit_code == 3
    assert "gpfl needs classes as labels" in refused.stderr


def test_an_algorithm_that_sends_no_parameters_is_not_attacked(tmp_path):
    found = audited(tmp_path / "a", "local")
    assert found["rows"] == []
    assert found["notes"] == ["local: sends no parameters, so there is no gradient to invert"]


def test_each_level_is_matched_by_the_first_round_that_reaches_it():
    losses = {1: 0.9, 2: 0.5, 3: 0.6, 4: 0.2}
    assert find_rounds_at_losses(losses, (0.9, 0.7, 0.55, 0.1)) == {0.9: 1, 0.7: 2, 0.55: 2}
    assert list_common_levels({"a": {0.9: 1, 0.5: 2}, "b": {0.9: 3, 0.2: 4}}) == [0.9]
    assert list_common_levels({"a": {0.9: 1}, "b": {}}) == []
    assert list_common_levels({}) == []


def test_the_loss_of_predictions_is_the_same_measure_for_all_algorithms(tmp_path):
    """FedRoD minimises a sum of two losses; without training, its predictions are FedAvg's."""
    audited(tmp_path, "fedavg", "fedrod", "--losses", "0.001", also=("training.lr=1e-9",))
    records = [json.loads(line) for line in (tmp_path / "attacks.jsonl").read_text().splitlines()]
    found = {r["algorithm"]: r["loss"] for r in records if r["event"] == "loss"}
    assert found["fedavg"] == pytest.approx(math.log(10), abs=0.1)
    assert found["fedrod"] == pytest.approx(math.log(10), abs=0.3)  # logits of two heads are added
    trained = {run.events[0]["algorithm"]: run.events for run in load_runs([tmp_path])}
    (summed,) = (e["loss"]["main"] for e in trained["fedrod"] if e["event"] == "round")
    assert summed > 1.5 * found["fedrod"]


def test_algorithms_are_attacked_and_compared_at_equal_loss(tmp_path):
    words = ("fedavg", "feddecomp", "--rounds", "1,2,3")
    by_round = audited(tmp_path / "a", *words)
    measured = audited(tmp_path / "b", *words, "--losses", "1e-9")
    assert (measured["rows"], measured["orderings"], measured["attacks"]) == ([], [], [])
    assert measured["notes"][0] == "loss 1e-09 is left out: fedavg, feddecomp did not reach it"
    log = [json.loads(v) for v in (tmp_path / "b" / "attacks.jsonl").read_text().splitlines()]
    losses = collect_losses(log)
    assert {name: [*own] for name, own in losses.items()} == {key: [1, 2, 3] for key in losses}
    common = max(min(own.values()) for own in losses.values())  # the slower one just reaches it
    quick = min(min(own.values()) for own in losses.values())  # which the other does not reach
    asked = ("--losses", f"{common!r},{quick!r}")
    found = audited(tmp_path / "c", *words, *asked)
    rounds = {name: find_rounds_at_losses(own, [common])[common] for name, own in losses.items()}
    assert {(r["algorithm"], r["round"]) for r in found["attacks"]} == {*rounds.items()}
    assert {n: v[f"{common:g}"]["round"] for n, v in found["matched"].items()} == rounds
    alone = {(r["algorithm"], r["private"]): r["rounds"] for r in by_round["rows"]}
    for row in found["rows"]:
        plain = alone[row["algorithm"], row["private"]][str(rounds[row["algorithm"]])]
        assert row["losses"] == {f"{common:g}": plain}
        assert (row["psnr_mean"], row["attacks"]) == (plain["psnr_mean"], 1)
    assert len(found["orderings"]) == 2 * len(PRIVATE_KNOWLEDGE)
    assert found["notes"][0].startswith(f"loss {quick:g} is left out: ")
    page = render_report(load_runs([tmp_path / "c"]))
    assert f'"when":"at loss {common:g}"' in page
    assert '"FedDecomp, known"]' in page  # has a column, although it was attacked in another round


def test_a_round_that_stands_for_two_levels_counts_twice():
    quality = {"private": "known", "client": "0", "image": 0, "finite": True, "labels": "known"}
    seen = {"ssim": 0.5, "references": {"grey": [10.0, 0.1]}, "event": "attack", **quality}
    victims = {"rounds": [1, 2], "clients": 1, "images": 1, "losses": [0.9, 0.7, 0.5]}
    how = {"labels": "known", "steps": 1}
    records = [
        {"event": "audit", "algorithms": ["fedavg"], "victims": victims, "how": how},
        *({"event": "visible", "algorithm": "fedavg", "round": t, "names": ["w"]} for t in (1, 2)),
        {"event": "loss", "algorithm": "fedavg", "round": 1, "loss": 0.6},
        {"event": "loss", "algorithm": "fedavg", "round": 2, "loss": 0.5},
        {"algorithm": "fedavg", "round": 1, "psnr": 12.0, **seen},
        {"algorithm": "fedavg", "round": 2, "psnr": 18.0, **seen},
    ]
    (row,) = summarise_audit(records, load_table("feddecomp-table7"))["rows"]
    assert (row["attacks"], row["psnr_mean"], row["psnr_max"]) == (2, 14.0, 18.0)
    assert [own["psnr_mean"] for own in row["losses"].values()] == [12.0, 12.0, 18.0]


def test_an_audit_of_other_attacks_is_no_evidence_for_claims(tmp_path):
    audited(tmp_path, "fedavg")
    assert is_audit(tmp_path)
    with pytest.raises(FolderError, match="algorithms is not as in --preset medium"):
        list(describe_audit(tmp_path))


def test_the_committed_audits_are_the_shipped_evidence():
    found = [
        run for folder in sorted(MEDIUM_AUDITS.glob("seed-*")) for run in describe_audit(folder)
    ]
    shipped = {run.key: run for run in read_stored_runs() if run.numbers}
    assert {run.key: run for run in found} == shipped
    assert len(found) == 4 * len(PRIVATE_KNOWLEDGE) * len([*MEDIUM_AUDITS.glob("seed-*")])


def change_row(content: dict) -> None:
    content["rows"][0]["losses"].popitem()


def change_iterations(content: dict) -> None:
    content["asked"]["how"]["iterations"] += 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_row, "fedavg was not attacked at all requested losses"),
        (change_iterations, "how is not as in --preset medium"),
    ],
)
def test_an_audit_that_lacks_something_is_refused_as_evidence(change, why, tmp_path):
    folder = shutil.copytree(MEDIUM_AUDITS / "seed-1", tmp_path / "a")
    content = json.loads((folder / "audit.json").read_text())
    change(content)
    (folder / "audit.json").write_text(json.dumps(content))
    with pytest.raises(FolderError, match=why):
        list(describe_audit(folder))


def test_an_audit_of_other_runs_is_refused_as_evidence(tmp_path):
    with unpack(MEDIUM_AUDITS / "seed-1" / "runs.zip") as runs:
        folder = shutil.copytree(runs, tmp_path / "a")
    shutil.copy(MEDIUM_AUDITS / "seed-1" / "audit.json", folder)
    config = folder / "fedper" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(FolderError, match=r"training\.lr is 0\.2; --preset medium has 0\.1"):
        list(describe_audit(folder))
    shutil.rmtree(folder / "fedper")
    with pytest.raises(FolderError, match="the run of fedper is missing"):
        list(describe_audit(folder))


def test_the_page_carries_the_audit(tmp_path):
    audited(tmp_path / "a", "fedavg")
    page = render_report(load_runs([tmp_path / "a"]))
    assert '"columns":["original","FedAvg, fresh","FedAvg, initial","FedAvg, known"]' in page
    assert len(page) < 300_000


@pytest.mark.parametrize(
    ("words", "also", "why"),
    [
        (("fedavg", "--rounds", "ten"), (), "--rounds ten: must be whole numbers"),
        (("fedavg", "--losses", "0.5,-1"), (), "--losses 0.5,-1: must be numbers above 0"),
        (("fedavg", "--losses", "low"), (), "--losses low: must be numbers above 0"),
        (("fedavg", "--losses", "inf"), (), "--losses inf: must be numbers above 0"),
        (("fedavg", "--clients", "9"), (), "--clients 9: there are only 3 clients"),
        (("fedavgg",), (), "did you mean 'fedavg'?"),
        (("centralized",), (), "centralized: this algorithm pools all data"),
        (("fedavg", "--labels", "joint"), (), "only dlg optimises them with the images"),
        (("fedavg",), ("rounds=3",), "name algorithms and --rounds in the command itself"),
        (("fedavg",), ("local.lrr=3",), "training.lrr: unknown key"),
    ],
)
def test_a_mistake_is_one_line(words, also, why, tmp_path):
    found = call(tmp_path / "a", *words, also=also)
    assert found.exit_code == 3
    assert why in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_another_audit_in_the_same_folder_is_refused(tmp_path):
    audited(tmp_path, "fedavg")
    assert "holds an audit with other settings" in call(tmp_path, "fedavg", "--tv", "1").stderr
    assert "choose another --out" in call(tmp_path, "fedavg", "--rounds", "2").stderr


def test_the_presets_are_whole():
    quick, paper = get_audit_preset("quick"), get_audit_preset("paper")
    assert quick.attack_settings == AttackSettings()
    assert paper.algorithms == ("fedavg", "fedper", "fedrod", "feddecomp")
    assert (paper.victims.rounds, paper.victims.clients, paper.victims.images) == (
        (10, 20, 30, 40, 50),
        20,
        5,
    )
    net = get_model_builder("smallcnn")((3, 32, 32), 10, 1)
    assert sum(p.numel() for p in net.parameters()) == 34_826
    found = read_source("photos")
    assert found.x.shape == (400, 3, 32, 32)
    assert [int((found.y == c).sum()) for c in range(10)] == [40] * 10
