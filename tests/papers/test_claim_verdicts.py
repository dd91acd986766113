"""Claims decided from runs: paired by seed and round, never by one seed, with conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterophony.papers.claim_data import (
    classify_verdict,
    count_verdicts,
    describe_found,
    list_cases,
    summarise_verdict,
)
from heterophony.papers.claim_list import PaperClaim
from heterophony.papers.claim_verdicts import decide_claim
from heterophony.papers.evidence import StoredRun
from heterophony.papers.table import load_table

TABLE = load_table("fedreg-table2-sota")
COLUMN = "Fashion-MNIST"
EVALUATED = list(range(21))


def claim(*below: str, **limits: float) -> PaperClaim:
    pairs = tuple((("FedReG", COLUMN), (row, COLUMN)) for row in below or ("FedAvg",))
    return PaperClaim(TABLE, "it is better", "1 against 0", "how", "G", pairs, **limits)


def run(
    row: str, seed: int, curve: list[float], variant: str = "", scale: str = "medium"
) -> StoredRun:
    values = {"G": curve, "P": curve}
    names = ("fmnist-small", "convnet_small")
    digests = ("s", "d", "m", "0")
    return StoredRun(
        *(TABLE.name, scale, row, COLUMN, variant, seed, *names, 20, EVALUATED, values),
        *(1.0, *digests),
    )


def level(value: float) -> list[float]:
    """A curve that is at this accuracy in every evaluation."""
    return [value] * len(EVALUATED)


def runs(gaps: list[float], row: str = "FedAvg", **where: str) -> list[StoredRun]:
    """FedReG and another row, for seeds 0, 1, …, with these differences between them."""
    return [
        r
        for seed, gap in enumerate(gaps)
        for r in (
            run("FedReG", seed, level(80.0 + seed), **where),
            run(row, seed, level(80.0 + seed - gap), **where),
        )
    ]


@pytest.mark.parametrize(
    ("gaps", "limits", "verdict"),
    [
        ([4.0, 4.5, 3.5], {}, "holds"),
        ([4.0, 4.5, -8.0], {}, "undecided"),
        ([-4.0, -4.5, -3.5], {}, "does not hold"),
        ([4.0], {}, "undecided"),
        ([4.0, 4.5, 3.5], {"least": 2.0}, "holds"),
        ([4.0, 4.5, 3.5], {"least": 4.0}, "undecided"),
        ([4.0, 4.5, 3.5], {"least": 6.0}, "does not hold"),
        ([0.1, -0.1, 0.0], {"within": 1.0}, "holds"),
        ([4.0, 4.5, 3.5], {"within": 1.0}, "does not hold"),
        ([1.0, 1.5, 0.5], {"within": 1.0}, "undecided"),
    ],
)
def test_a_claim_is_decided_by_the_interval_over_seeds(gaps, limits, verdict):
    found = decide_claim(claim(**limits), runs(gaps))
    assert (found.verdict, found.scale) == (verdict, "medium")


def test_seeds_are_paired():
    """Seeds differ by points, their pairs hardly: without pairing it could not be told."""
    far = [r for s in range(3) for r in (run("FedReG", s, level(50.0 + 10 * s + 0.5 + s / 10)),)]
    near = [run("FedAvg", s, level(50.0 + 10 * s)) for s in range(3)]
    found = decide_claim(claim(), far + near)
    assert found.verdict == "holds"
    assert found.cases[0].nearest.values == pytest.approx((0.5, 0.6, 0.7))


def test_one_seed_decides_nothing_and_says_so():
    found = decide_claim(claim(), runs([40.0]))
    assert (
        found.why
        == "settings as in the text, best round: one seed, which decides nothing: FedReG − FedAvg = +40.00, 1 seed"
    )


def test_missing_rows_leave_an_ordering_undecided_but_may_refute_it():
    both = claim("FedAvg", "FedRoD")
    found = decide_claim(both, runs([4.0, 4.5, 3.5]))
    assert found.verdict == "undecided"
    assert "rows not run: FedRoD; FedReG − FedAvg = +4.00 (+2.76 … +5.24, 95 %)" in found.why
    assert decide_claim(both, runs([-40.0, -41.0, -42.0])).verdict == "does not hold"
    assert decide_claim(both, []).why == "not run"


def test_a_claim_may_hold_with_some_settings_only():
    plain, varied = runs([0.5, -0.5, 0.0]), runs([4.0, 4.5, 3.5], variant="momentum-0")
    found = decide_claim(claim(), plain + varied)
    assert found.verdict == "holds under condition: momentum 0"  # by both rules
    assert classify_verdict(found.verdict) == "holds under condition"
    assert count_verdicts([found]) == (
        "1 claim: 0 hold, 1 holds under a condition, 0 do not hold, 0 are undecided"
    )


def test_a_claim_may_hold_by_one_rule_only():
    """The best round of FedReG is better, its last ten are worse."""
    late = [90.0] + [70.0] * 20
    found = decide_claim(
        claim(),
        [r for s in range(3) for r in (run("FedReG", s, late), run("FedAvg", s, level(80.0 + s)))],
    )
    assert [(c.rule, c.decision) for c in found.cases] == [
        ("best", "holds"),
        ("last10", "does not hold"),
    ]
    assert found.verdict == (
        "holds under condition: settings as in the text, best round"
        " (does not hold: settings as in the text, last 10)"
    )


def test_a_variant_of_one_row_is_compared_with_the_plain_runs_of_others():
    reg = [r for r in runs([4.0, 4.5, 3.5]) if r.row == "FedReG"]
    more = [run("FedAvg", s, level(85.0 + s), variant="equal-work") for s in range(3)]
    found = decide_claim(claim(), reg + more)
    assert {(c.variant, c.decision) for c in found.cases} == {("equal-work", "does not hold")}


def test_attacks_are_judged_at_equal_loss_under_two_attackers():
    """Attacks have numbers instead of curves, and a verdict for each attacker."""
    table = load_table("feddecomp-table7")
    pair = (("FedAvg", "CIFAR-10"), ("FedDecomp", "CIFAR-10"))
    about = PaperClaim(table, "it leaks less", "2 against 1", "how", "psnr_mean", (pair,))
    found = decide_claim(
        about,
        [
            replace(
                run(row, seed, []),
                table=table.name,
                column="CIFAR-10",
                evaluated=[],
                curves={},
                variant=f"personal-parameters-{known}",
                numbers={"psnr_mean": value + seed},
            )
            for seed in range(3)
            for known, values in {"unknown": (14.0, 11.0), "known": (14.0, 16.0)}.items()
            for row, value in zip(("FedAvg", "FedDecomp"), values, strict=True)
        ],
    )
    assert found.verdict == (
        "holds under condition: personal parameters unknown, at equal training loss"
        " (does not hold: personal parameters known, at equal training loss)"
    )
    assert [(c.rule, c.seeds, c.parts) for c in found.cases] == [("matched", 3, ())] * 2


def test_runs_on_stand_in_data_are_shown_and_decide_nothing():
    found = decide_claim(claim(), runs([4.0, 4.5, 3.5], scale="stand-in"))
    assert (found.verdict, found.scale) == ("undecided", "stand-in")
    assert describe_found(found).startswith("stand-in data, settings as in the text, best round: ")
    shown = ["undecided; holds on stand-in data"] * 2
    assert [row[2] for row in list_cases(found)] == shown
    assert [case["verdict"] for case in summarise_verdict(found)["cases"]] == shown
    more = runs([4.0, 4.5, 3.5, 4.1], scale="stand-in")
    assert decide_claim(claim(), runs([0.5, -0.5, 0.0]) + more).scale == "medium"


def test_the_full_scale_counts_before_the_medium_one():
    full, small = runs([-4.0, -4.5, -3.5], scale="full"), runs([4.0, 4.5, 3.5])
    assert decide_claim(claim(), full + small).verdict == "does not hold"
    found = decide_claim(claim(), runs([-4.0], scale="full") + small)  # one seed decides nothing
    assert (found.verdict, found.scale) == ("holds", "medium")


def test_differences_over_the_rounds_are_paired_by_seed_and_round():
    rising = [float(t) for t in EVALUATED]
    found = decide_claim(
        claim(),
        [
            r
            for s in range(2)
            for r in (run("FedReG", s, [v + s for v in rising]), run("FedAvg", s, level(0.0)))
        ],
    )
    parts = found.cases[0].parts
    # rounds 1-2, 3-5, 6-10, 11-15, 16-20: means of the rounds, plus half for the second seed
    assert [(p.first_round, p.last_round, p.mean) for p in parts] == [
        *((1, 2, 2.0), (3, 5, 4.5), (6, 10, 8.5), (11, 15, 13.5), (16, 20, 18.5)),
    ]
    by_best, by_last = list_cases(found)
    assert by_best[-1].startswith("rounds 1–2: +2.0 (−4.4 … +8.4), rounds 3–5")
    assert by_last[-1] == ""


def test_one_line_says_what_decides_a_claim_or_why_nothing_does():
    assert describe_found(decide_claim(claim(), [])) == "not run"
    few = decide_claim(claim(), runs([4.0]))
    assert describe_found(few).startswith(
        "medium scale, settings as in the text, best round: one seed, which decides nothing: FedReG"
    )
    held = describe_found(decide_claim(claim(), runs([4.0, 4.5, 3.5])))
    assert held.startswith("medium scale, settings as in the text, best round: FedReG − FedAvg")
    failed = describe_found(decide_claim(claim(), runs([-4.0, -4.5, -3.5])))
    assert failed.startswith("medium scale, settings as in the text, best round: FedReG − FedAvg")


def test_programs_get_everything():
    found = summarise_verdict(decide_claim(claim(), runs([4.0, 4.5, 3.5])))
    case = found["cases"][0]
    assert found["verdict"] == "holds"
    assert (case["scale"], case["variant"], case["rule"], case["seeds"]) == (
        *("medium", None, "best", 3),
    )
    assert case["differences"] == [
        {
            "first": ["FedReG", COLUMN],
            "second": ["FedAvg", COLUMN],
            "seeds": [0, 1, 2],
            "values": [4.0, 4.5, 3.5],
            "mean": 4.0,
            "ci95": [2.758, 5.242],
        }
    ]
