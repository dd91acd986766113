"""FedPAC: the optimal mixture of heads, class centres and variances, alignment, and what travels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    blobs,
    memory,
    model,
    played,
    replies,
    same,
    watching,
    wire,
)
from heterophony.algorithms import fedpac
from heterophony.algorithms.fedpac import FedPAC, solve_head_mixtures
from heterophony.algorithms.parts.mixing import minimise_on_simplex
from heterophony.core.algorithm import Reply, Server
from heterophony.core.tensors import mix
from heterophony.jobs.plan import Job

DRAW = torch.Generator().manual_seed(0)
MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=0.1)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


def forms(v: list[torch.Tensor], h: list[torch.Tensor]) -> list[torch.Tensor]:
    """diag(V) + D_i, entry by entry."""
    n = len(v)
    out = []
    for i in range(n):
        d = [[float(((h[i] - h[j]) * (h[i] - h[k])).sum()) for k in range(n)] for j in range(n)]
        out.append(torch.diag(torch.stack(v)) + torch.tensor(d, dtype=torch.float64))
    return out


def said(client: str, head: float, variance: float, weighted: float, **more) -> Reply:
    """A reply with a head of one number and one class."""
    extra = {
        "variance": variance,
        "weighted": [[weighted]],
        "centres": [[1.0]],
        "held": [1.0],
        **more,
    }
    tensors = {"base.w": torch.zeros(1), "head.w": torch.tensor([head])}
    tensors |= {f"fedpac/{k}": torch.tensor(v) for k, v in extra.items()}
    return Reply(client, "train", hp.Tensors(tensors), 10, 10)


def server(*clients: str) -> Server:
    start = hp.Tensors({"base.w": torch.zeros(1), "head.w": torch.full((1,), 9.0)})
    return Server(0, dict.fromkeys(clients, 10), start)


# The mixture of heads -----------------------------------------------------------------------


def test_one_participant_keeps_its_head(monkeypatch):
    assert solve_head_mixtures([torch.tensor(0.3)], [random(2, 3)]) == [[1.0]]
    result, sent = replies(monkeypatch, FedPAC(), participation=hp.Uniform(count=1), rounds=1)
    (reply,) = sent[0]
    head = reply.tensors.only("head.*")
    assert same(result._server.memory[f"head/{reply.client}"], head)
    assert same(hp.weights(result.personal(reply.client).net).only("head.*"), head)


def test_where_all_h_are_equal_shares_are_inverse_to_variances():
    v = [torch.tensor(x) for x in (0.1, 0.2, 0.4)]
    h = [torch.ones(2, 3)] * 3
    for row in solve_head_mixtures(v, h):
        assert row == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=1e-9)


def test_two_participants_have_a_closed_form():
    for scale in (1e-3, 0.1, 1.0, 10.0):
        v = [random(()).abs(), random(()).abs()]
        h = [scale * random(3, 4) for _ in range(2)]
        for q, row in zip(forms(v, h), solve_head_mixtures(v, h), strict=True):
            a = (q[1, 1] - q[0, 1]) / (q[0, 0] + q[1, 1] - 2 * q[0, 1])
            a = a.clamp(0, 1)
            a = torch.where(a < 1e-3, 0.0, torch.where(a > 1 - 1e-3, 1.0, a))
            assert row == pytest.approx([float(a), 1 - float(a)], abs=1e-9)


@pytest.mark.parametrize("n", [3, 8, 16])
def test_many_participants_meet_the_conditions_of_the_optimum(n):
    for scale in (0.01, 0.3, 3.0):
        v = [random(()).abs() for _ in range(n)]
        h = [scale * random(2, 5) for _ in range(n)]
        for i, q in enumerate(forms(v, h)):
            assert float(torch.linalg.eigvalsh(q).min()) > -1e-9 * float(q.max())
            a = minimise_on_simplex(q, i)
            assert float(a.min()) >= 0
            assert float(a.sum()) == pytest.approx(1, abs=1e-12)
            slope = q @ a
            tight = slope - a @ slope
            assert float(tight.min()) > -1e-9 * float(q.max())
            assert float((tight * a).abs().max()) < 1e-9 * float(q.max())


def test_without_variance_and_alike_everybody_keeps_its_own():
    rows = solve_head_mixtures([torch.tensor(0.0)] * 3, [torch.ones(2, 2)] * 3)
    assert rows == torch.eye(3).tolist()


def test_small_shares_are_dropped_and_the_rest_renormalised():
    v = [torch.tensor(x) for x in (1.0, 1.0, 2000.0)]
    for row in solve_head_mixtures(v, [torch.zeros(1, 1)] * 3):
        assert row == pytest.approx([0.5, 0.5, 0.0], abs=1e-15)
        assert row[2] == 0.0
        assert sum(row) == pytest.approx(1.0, abs=1e-15)


def test_heads_and_statistics_are_in_the_order_of_the_replies_not_of_ids():
    after = FedPAC().merge(server(*"0123456"), [said("3", 1.0, 0.1, 0.0), said("6", 5.0, 0.3, 0.0)])
    for c in "36":
        assert float(after.memory[f"head/{c}"]["head.w"]) == pytest.approx(0.75 * 1 + 0.25 * 5)
    far = [said("3", 1.0, 0.1, 0.0), said("6", 5.0, 0.1, 1e3)]  # nothing in common
    after = FedPAC().merge(server(*"0123456"), far)
    assert {c: float(after.memory[f"head/{c}"]["head.w"]) for c in "36"} == {"3": 1.0, "6": 5.0}


def test_where_the_solver_fails_the_own_head_stays(monkeypatch):
    monkeypatch.setattr(fedpac, "minimise_on_simplex", lambda q, start: None)
    after = FedPAC().merge(server(*"0123456"), [said("3", 1.0, 0.1, 0.0), said("6", 5.0, 0.3, 0.0)])
    assert {c: float(after.memory[f"head/{c}"]["head.w"]) for c in "36"} == {"3": 1.0, "6": 5.0}
    broken = torch.full((2, 2), torch.nan, dtype=torch.float64)
    assert minimise_on_simplex(broken, 1) is None


def test_others_keep_their_heads_and_newcomers_the_first_one():
    short = played(FedPAC(), rounds=1, participation=Turns([0, 1]))
    long = played(FedPAC(), rounds=3, participation=Turns([0, 1], [1, 2], [1, 2]))
    sent = {c: long.plan.algorithm.send(long._server, c) for c in long.plan.federation.clients}
    assert same(sent["0"].only("head.*"), short._server.memory["head/0"])
    first = long.plan.create_initial_server().model.only("head.*")
    assert same(sent["5"].only("head.*"), first)
    assert not same(model(long).only("head.*"), first)
    assert all(same(s.only("base.*"), model(long).only("base.*")) for s in sent.values())
    assert all("fedpac/centres" in s for s in sent.values())


def test_g_has_the_mean_head_and_p_the_mixed_one(monkeypatch):
    result, sent = replies(monkeypatch, FedPAC(), rounds=2)
    whole = sum(r.samples for r in sent[-1])
    mean = mix([r.tensors for r in sent[-1]], [r.samples / whole for r in sent[-1]])
    assert same(hp.weights(result.generic().net), mean.only("base.*", "head.*"))
    client = sent[-1][0].client
    own = hp.weights(result.personal(client).net).only("head.*")
    assert same(own, result._server.memory[f"head/{client}"])
    assert not same(own, mean.only("head.*"))
    assert "net" not in memory(result, client)


# Statistics and centres ---------------------------------------------------------------------


def test_statistics_are_those_of_the_received_base_and_centres_those_of_the_trained(monkeypatch):
    result, sent = replies(monkeypatch, FedPAC(), rounds=1)
    start = result.plan.template.eval()
    for reply in sent[0]:
        data, got = result.plan.federation.data(reply.client), reply.tensors.below("fedpac/")
        x, y = data.train.batch(torch.arange(len(data.train)))
        n, v = len(y), 0.0
        with torch.no_grad():
            z = start.base(x)
        trained = played("fedavg", rounds=0).plan.template
        trained.load_state_dict(reply.tensors.only("base.*", "head.*"))
        with torch.no_grad():
            after = trained.base(x)
        for c in range(10):
            if not bool((y == c).any()):
                assert not bool(got["weighted"][c].any())
                assert not bool(got["centres"][c].any())
                continue
            p, mu = float((y == c).sum()) / n, z[y == c].mean(0)
            v += p * float(z[y == c].square().sum(1).mean()) - p**2 * float(mu.square().sum())
            assert torch.allclose(got["weighted"][c], p * mu, atol=1e-5)
            assert torch.allclose(got["centres"][c], after[y == c].mean(0), atol=1e-5)
        assert float(got["variance"]) == pytest.approx(v / n, rel=1e-4)
        assert float(got["variance"]) >= 0
        assert got["held"].tolist() == data.counts.tolist()


def test_a_single_example_has_no_variance():
    parts = [(x, y, x, y) for x, y in blobs([1, 1])]
    result = played(FedPAC(), hp.federate(parts), participation=1.0)
    assert all(0 <= float(v) < 1e-6 for v in variances(result))


def variances(result: hp.Result) -> list[float]:
    plan, server, found = result.plan, result._server, []
    store = result._run_folder.client_store
    for c in plan.federation.clients:
        job = Job(kind="evaluate", t=server.t, client=c, tensors=plan.algorithm.send(server, c))
        client = plan.build_client(job, store.load_memory(c, before=server.t), store)
        found.append(float(fedpac.compute_bound_terms(client)["variance"]))
    return found


def test_centres_are_averaged_by_the_size_of_the_class():
    few = said("0", 1.0, 0.1, 0.0, centres=[[1.0], [5.0], [0.0]], held=[1.0, 2.0, 0.0])
    many = said("1", 1.0, 0.1, 0.0, centres=[[4.0], [0.0], [0.0]], held=[3.0, 0.0, 0.0])
    centres = FedPAC().merge(server(*"01"), [few, many]).memory["centres"]["fedpac/centres"]
    assert centres.tolist() == [[3.25], [5.0], [0.0]]


def test_without_centres_or_for_unknown_classes_there_is_no_alignment():
    def check(client, fit, loss, **how):
        net = client.net
        x, y = client.data.train.batch(torch.arange(8))
        z, plain = net.base(x), cross_entropy(net(x), y)
        centres = client.received.get("fedpac/centres")
        if centres is None or how.get("phase") == "head":
            assert torch.equal(loss(x, y), plain)
        else:
            terms = [
                (a - centres[c]).square().sum()
                for a, c in zip(z, y, strict=True)
                if centres[c].any()
            ]
            far = torch.stack(terms).sum() / z.numel() if terms else torch.tensor(0.0)
            assert torch.allclose(loss(x, y), plain + 2.0 * far, rtol=1e-5)
            unknown.append(len(terms) < len(y))
        fit(loss, **how)

    unknown: list[bool] = []
    turns = Turns([0], [1, 2, 3, 4, 5], [0])
    played(watching(FedPAC, check, lam=2.0), participation=turns)
    assert True in unknown
    assert False in unknown


def test_the_base_rests_while_the_head_learns_and_the_other_way_round():
    moved, epochs = [], []

    def check(client, fit, loss, **how):
        before, steps = hp.weights(client.net), []
        fit(lambda x, y: (steps.append(1), loss(x, y))[1], **how)
        after = hp.weights(client.net)
        moved.append([not same(before.only(p), after.only(p)) for p in ("base.*", "head.*")])
        epochs.append(len(steps) / (len(client.data.train) // QUICK.batch or 1))

    how = replace(MOMENTUM, epochs=3)
    played(watching(FedPAC, check), rounds=2, training=how)
    assert moved == [[False, True], [True, False]] * 6
    assert epochs == [1, 3] * 6


def test_traffic_is_the_papers():
    net, table = 797_962, 10 * 192
    up = net + 2 * table + 10 + 1
    assert wire(FedPAC()) == [(net, up), (net + table, up)]
    assert (round(up / net, 4), round((net + table) / net, 4)) == (1.0048, 1.0024)
