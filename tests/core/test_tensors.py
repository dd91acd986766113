"""Tensors: arithmetic, selection by name, and digests that depend on content alone."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from heterophony.core.tensors import (
    Tensors,
    frozen,
    matches_any,
    mix,
    params,
    sum_scalars,
    tensor_to_bytes,
    weights,
)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def some() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    shapes = {"head.weight": (3, 5), "base.0.bias": (7,), "a": (), "head.bias": (3,)}
    return {k: torch.randn(v, generator=g) for k, v in shapes.items()}


def same_bits(a: Tensors, b: Tensors) -> bool:
    return list(a) == list(b) and all(
        a[k].dtype == b[k].dtype
        and a[k].shape == b[k].shape
        and tensor_to_bytes(a[k]) == tensor_to_bytes(b[k])
        for k in a
    )


# Arithmetic ---------------------------------------------------------------------------------


def test_arithmetic_is_that_of_each_tensor():
    a, b = Tensors(some()), Tensors(some()).map(torch.exp)
    assert same_bits(a + b, Tensors({k: a[k] + b[k] for k in a}))
    assert same_bits(a - b, Tensors({k: a[k] - b[k] for k in a}))
    assert same_bits(0.1 * a, Tensors({k: a[k] * 0.1 for k in a}))
    assert same_bits(a * 0.1, 0.1 * a)
    assert same_bits(a / 3, Tensors({k: a[k] / 3 for k in a}))
    assert same_bits(a.zeros(), Tensors({k: torch.zeros_like(a[k]) for k in a}))
    assert all(type(x) is Tensors for x in (a + b, a - b, a * 2, 2 * a, a / 2, a.zeros(), a | b))


def test_arithmetic_leaves_its_operands_alone():
    a, b = Tensors(some()), Tensors(some())
    before = a.digest()
    _ = (a + b, a - b, 2 * a, a / 2, a.dot(b), a.zeros(), mix([a, b], [0.5, 0.5]))
    assert a.digest() == before == b.digest()


def test_inner_product_square_and_sum():
    a = Tensors({"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([[3.0]])})
    b = Tensors({"x": torch.tensor([5.0, 7.0]), "y": torch.tensor([[11.0]])})
    assert a.dot(b).item() == 1 * 5 + 2 * 7 + 3 * 11
    assert a.square().item() == 14
    assert a.sum().item() == 6
    assert Tensors().dot(Tensors()).item() == 0
    assert Tensors().sum().item() == 0
    assert sum_scalars([]).item() == 0


def test_inner_product_carries_gradients():
    w = nn.Parameter(torch.tensor([2.0, 3.0]))
    Tensors({"w": w}).square().backward()
    assert w.grad.tolist() == [4.0, 6.0]


def test_union_takes_the_right_side_and_keeps_the_left_one_as_it_was():
    a = Tensors({"x": torch.zeros(1), "z": torch.zeros(1)})
    both = a | {"y": torch.ones(1), "x": torch.ones(2)}
    assert list(both) == ["x", "y", "z"]
    assert both["x"].shape == (2,)
    assert list(a) == ["x", "z"]


def test_a_name_missing_on_the_other_side_is_an_error():
    a = Tensors(some())
    with pytest.raises(KeyError):
        _ = a + a.without("a")


# Canonical order ----------------------------------------------------------------------------


def test_same_content_in_any_insertion_order_gives_the_same_names_digest_and_bits():
    items = list(some().items())
    first = Tensors(items)
    bits = tensor_to_bytes(first.dot(first.map(torch.sin)))
    for order in permutations(items):
        for made in (Tensors(order), Tensors(dict(order)), Tensors() | dict(order)):
            assert list(made) == sorted(k for k, _ in items)
            assert made.digest() == first.digest()
            assert tensor_to_bytes(made.dot(made.map(torch.sin))) == bits
            assert tensor_to_bytes(made.sum()) == tensor_to_bytes(first.sum())


# mix ----------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    values=st.lists(finite, min_size=1, max_size=20),
    counts=st.lists(st.integers(1, 100_000), min_size=1, max_size=40),
)
def test_mean_of_identical_models_is_exact_whatever_the_weights(values, counts):
    model = Tensors({"w": torch.tensor(values, dtype=torch.float32)})
    whole = sum(counts)
    mean = mix([model] * len(counts), [n / whole for n in counts])
    assert same_bits(mean, model)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mean_of_identical_models_is_exact_for_many_numbers(count, dtype):
    g = torch.Generator().manual_seed(count)
    w = torch.randn(5000, generator=g) * torch.logspace(-3, 3, 5000)
    model = Tensors({"w": w.to(dtype)})
    sizes = torch.randint(1, 1000, (count,), generator=g).tolist()
    shares = [n / sum(sizes) for n in sizes]
    assert same_bits(mix([model] * count, shares), model)
    assert same_bits(mix([model] * count, [1 / count] * count), model)


def test_the_sign_of_zero_survives_the_mean():
    model = Tensors({"w": torch.tensor([0.0, -0.0])})
    mean = mix([model] * 3, [0.2, 0.3, 0.5])
    assert torch.signbit(mean["w"]).tolist() == [False, True]


def test_mix_accumulates_in_float64_in_the_order_given():
    g = torch.Generator().manual_seed(0)
    items = [Tensors({"w": torch.randn(999, generator=g)}) for _ in range(13)]
    shares = torch.rand(13, generator=g, dtype=torch.float64).tolist()
    expected = sum((s * i["w"].double() for s, i in zip(shares, items, strict=True)), start=0.0)
    got = mix(items, shares)["w"]
    assert got.dtype == torch.float32
    # fused multiply-add may round a product less: half a unit of float32 at most, mostly none
    torch.testing.assert_close(got, expected.float(), rtol=2**-23, atol=0)
    single = torch.zeros(999)
    for s, i in zip(shares, items, strict=True):
        single += s * i["w"]
    off = (got.double() - expected).abs().sum()
    assert off < (single.double() - expected).abs().sum()


def test_a_float64_mean_sees_what_float32_would_lose():
    items = [Tensors({"w": torch.tensor([v])}) for v in (2.0**25, 1.0, -(2.0**25))]
    assert mix(items, [1.0, 1.0, 1.0])["w"].item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mix_keeps_the_type(dtype):
    items = [Tensors({"w": torch.tensor([v], dtype=dtype)}) for v in (1.0, 3.0)]
    mean = mix(items, [0.5, 0.5])["w"]
    assert mean.dtype == dtype
    assert mean.item() == 2.0


def test_integers_are_not_averaged_the_first_ones_are_kept():
    kinds = [torch.int64, torch.int32, torch.uint8]
    items = [
        Tensors({str(k): torch.tensor([v], dtype=k) for k in kinds} | {"b": torch.tensor(v > 5)})
        for v in (3, 100)
    ]
    mean = mix(items, [0.5, 0.5])
    assert same_bits(mean, items[0])
    mean["b"].fill_(True)
    assert not items[0]["b"].item(), "the result shares no memory with the replies"


def test_mix_of_nothing_is_nothing_and_shares_must_fit():
    assert mix([], []) == Tensors()
    with pytest.raises(ValueError, match="zip"):
        mix([Tensors(some())], [0.5, 0.5])


def test_mix_does_not_depend_on_the_memory_format():
    g = torch.Generator().manual_seed(1)
    items = [Tensors({"w": torch.randn(4, 3, 5, 5, generator=g)}) for _ in range(3)]
    last = [i.map(lambda v: v.contiguous(memory_format=torch.channels_last)) for i in items]
    shares = [0.2, 0.3, 0.5]
    assert same_bits(mix(items, shares), mix(last, shares))


# Names --------------------------------------------------------------------------------------


def test_only_and_without_part_the_names_by_pattern():
    a = Tensors(some())
    assert list(a.only("head.*")) == ["head.bias", "head.weight"]
    assert list(a.without("head.*")) == ["a", "base.0.bias"]
    assert list(a.only("head.*", "a")) == ["a", "head.bias", "head.weight"]
    assert list(a.only()) == []
    assert list(a.without()) == list(a)
    assert same_bits(a.only("head.*") | a.without("head.*"), a)


def test_patterns_see_case_and_match_whole_names():
    assert matches_any("head.weight", ["base.*", "head.*"])
    assert not matches_any("Head.weight", ["head.*"])
    assert not matches_any("own.head.weight", ["head.*"])
    assert not matches_any("head.weight", [])


def test_below_undoes_under_and_leaves_out_the_rest():
    a = Tensors(some())
    assert list(a.under("m/")) == ["m/a", "m/base.0.bias", "m/head.bias", "m/head.weight"]
    assert same_bits(a.under("m/").below("m/"), a)
    assert list((a | a.under("m/")).below("m/")) == list(a)
    absent = "none/"
    assert a.below(absent) == Tensors()


# Size and digest ----------------------------------------------------------------------------


def test_nbytes_counts_the_values_alone():
    kinds = {
        "a": torch.zeros(3, 4),
        "b": torch.zeros(5, dtype=torch.int64),
        "c": torch.zeros((), dtype=torch.float16),
        "d": torch.zeros(0, 9),
        "e": torch.zeros(7, dtype=torch.bool),
    }
    assert Tensors(kinds).nbytes == 48 + 40 + 2 + 0 + 7
    assert Tensors().nbytes == 0


BASE = {"w": torch.tensor([[1.0, 2.0]]), "v": torch.tensor([0, 1], dtype=torch.int32)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"x": BASE["w"]}, id="one more name"),
        pytest.param({"w": torch.tensor([[1.0], [2.0]])}, id="shape"),
        pytest.param({"w": torch.tensor([1.0, 2.0])}, id="dimensions"),
        pytest.param({"w": torch.tensor([[1.0, 2.0000002]])}, id="one bit of a value"),
        pytest.param({"w": BASE["w"].view(torch.int32)}, id="type, the bytes being equal"),
        pytest.param({"v": BASE["v"].view(torch.float32)}, id="type of the other"),
        pytest.param({"v": torch.tensor([1, 0], dtype=torch.int32)}, id="order of values"),
    ],
)
def test_digest_sees_every_change(change):
    assert Tensors({**BASE, **change}).digest() != Tensors(BASE).digest()


def test_digest_sees_names_and_the_sign_of_zero():
    w = torch.zeros(1)
    digests = {Tensors({k: w}).digest() for k in ("w", "W", "w ", "w|")} | {Tensors().digest()}
    assert len(digests) == 5
    assert Tensors({"w": w}).digest() != Tensors({"w": -w}).digest()


def test_digest_is_not_fooled_by_a_name_that_looks_like_another_tensor():
    x, y = torch.tensor([88], dtype=torch.uint8), torch.tensor([89], dtype=torch.uint8)
    two = Tensors({"a": x, "b": y})
    one = Tensors({"a|torch.uint8|(1,)|Xb": y})
    assert one.digest() != two.digest()


def test_digest_does_not_see_the_memory_format():
    w = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    plain = Tensors({"w": w}).digest()
    assert Tensors({"w": w.contiguous(memory_format=torch.channels_last)}).digest() == plain
    assert Tensors({"w": w.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)}).digest() == plain
    assert Tensors({"w": nn.Parameter(w)}).digest() == plain
    strided = torch.stack([w, w], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    assert Tensors({"w": strided}).digest() == plain


def test_raw_gives_the_bytes_of_every_kind():
    assert tensor_to_bytes(torch.tensor(258, dtype=torch.int16)) == b"\x02\x01"
    assert tensor_to_bytes(torch.tensor([True, False])) == b"\x01\x00"
    assert tensor_to_bytes(torch.zeros(0, 3)) == b""
    assert tensor_to_bytes(torch.tensor([1.0], dtype=torch.bfloat16)) == b"\x80\x3f"


# Modules ------------------------------------------------------------------------------------


def test_weights_are_a_copy_and_params_are_live():
    module = nn.Linear(2, 1)
    still, live = weights(module), params(module)
    before = still.digest()
    with torch.no_grad():
        module.weight.add_(1)
    assert still.digest() == before
    assert not any(v.requires_grad for v in still.values())
    assert live["weight"] is module.weight


def test_a_frozen_module_is_another_one_that_does_not_learn():
    module = nn.Linear(2, 1)
    still = frozen(module)
    assert same_bits(weights(still), weights(module))
    assert not any(p.requires_grad for p in still.parameters())
    assert all(p.requires_grad for p in module.parameters())
    with torch.no_grad():
        module.weight.add_(1)
    assert not torch.equal(still.weight, module.weight)


def test_sums_do_not_depend_on_the_memory_format():
    """What came over a wire is row by row, what stayed in the process may not be: the same bits."""
    v = torch.randn(32, 16, 5, 5, generator=torch.Generator().manual_seed(0))
    rows = Tensors({"w": v})
    other = Tensors({"w": v.to(memory_format=torch.channels_last)})
    assert torch.equal(rows.sum(), other.sum())
    assert torch.equal(rows.square(), other.square())
    assert torch.equal(rows.dot(other), other.dot(rows))
