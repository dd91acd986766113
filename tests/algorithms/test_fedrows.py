"""FedRows: each ingredient switched off gives what it came from; rows belong to who holds the class."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import kl_div

import heterophony as hp
from helpers.support import QUICK, digits, model, played, same
from heterophony.algorithms.fedrod import FedRoD
from heterophony.algorithms.fedrows import FedRows
from heterophony.algorithms.parts.class_rows import list_last_layer, merge_class_rows
from heterophony.algorithms.parts.other_classes import compute_other_class_loss
from heterophony.core.algorithm import Reply, Server
from heterophony.core.tensors import Tensors

MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=1e-3)
COUNTS = [[3, 0, 1], [1, 0, 3]]


def make_server(rows: int = 3) -> Server:
    head = {"head.0.weight": torch.zeros(rows, 2), "head.0.bias": torch.zeros(rows)}
    return Server(0, {"a": 4, "b": 4}, Tensors(head))


def make_replies(counts: list[list[int]]) -> list[Reply]:
    """Make replies whose rows are all ones, all twos, …"""
    replies = []
    for i, (name, held) in enumerate(zip("ab", counts, strict=True)):
        weight, bias = torch.full((3, 2), i + 1.0), torch.full((3,), i + 1.0)
        tensors = {"head.0.weight": weight, "head.0.bias": bias, "held/counts": torch.tensor(held)}
        replies.append(Reply(name, "train", Tensors(tensors), 4, 4.0))
    return replies


def merge(counts: list[list[int]]) -> Tensors:
    return merge_class_rows(make_server(), make_replies(counts), "held/counts")


def test_without_its_ingredients_it_is_fedrod():
    off = FedRows(rows="mean", beta=0.0)
    results = [played(a, model="digitsnet", training=MOMENTUM) for a in (off, FedRoD())]
    assert results[0].summary.model_sha256 == results[1].summary.model_sha256
    found = [[(e["G"], e["P"]) for e in r.events if e["event"] == "evaluation"] for r in results]
    assert found[0] == found[1]


def test_each_ingredient_alone_changes_the_model():
    one = [FedRows(beta=0.0), FedRows(rows="mean"), FedRows(), FedRoD()]
    hashes = [played(a, model="digitsnet", training=MOMENTUM).summary.model_sha256 for a in one]
    assert len(set(hashes)) == 4


def test_where_clients_have_the_same_counts_rows_are_merged_like_all_else():
    whole = digits(clients=1, examples=120).data("0").train
    x, y = whole.x.numpy(), whole.y.numpy()
    federation = hp.federate([(x, y, x, y)] * 3)
    how = {"training": MOMENTUM, "participation": 1.0, "rounds": 2}
    a, b = (played(FedRows(rows=r), federation, **how) for r in ("class", "mean"))
    assert same(model(a), model(b))


def test_a_row_is_weighted_by_the_examples_of_its_class():
    merged = merge(COUNTS)
    assert merged["head.0.bias"].tolist() == [1.25, 0.0, 1.75]
    assert merged["head.0.weight"].tolist() == [[1.25, 1.25], [0.0, 0.0], [1.75, 1.75]]


def test_who_holds_no_example_of_a_class_has_no_say_in_its_row():
    assert merge([[3, 0, 1], [1, 5, 0]])["head.0.bias"].tolist() == [1.25, 2.0, 1.0]


def test_only_the_last_layer_has_rows_of_classes():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(11)))
    names = Tensors({f"head.{k}": v.detach() for k, v in net.named_parameters()})
    assert list_last_layer(names, 3) == ["head.10.bias", "head.10.weight"]


def test_distillation_has_the_gradient_of_the_divergence_over_the_other_classes():
    source = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 5, 4, generator=source, dtype=torch.float64)
    y = torch.tensor([0, 3, 1, 1, 2])
    others = torch.ones(5, 4, dtype=torch.bool).scatter_(1, y[:, None], False)
    a, b = student.clone().requires_grad_(), student.clone().requires_grad_()
    compute_other_class_loss(a, teacher, y).backward()
    rest = [o[others].view(5, 3) for o in (b, teacher)]
    kl_div(rest[0].log_softmax(1), rest[1].softmax(1), reduction="batchmean").backward()
    torch.testing.assert_close(a.grad, b.grad)
    assert torch.equal(a.grad.gather(1, y[:, None]), torch.zeros(5, 1, dtype=torch.float64))


def test_a_student_that_says_the_same_as_its_teacher_has_no_gradient():
    same_logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = compute_other_class_loss(same_logits, same_logits.detach(), torch.arange(6))
    (gradient,) = torch.autograd.grad(loss, same_logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
