"""Claims decided from runs: by the paper's rule, paired by seed, never by one seed or an untrained net."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterophony.papers.claim_data import (
    FindingVerdict,
    build_case_table,
    classify_verdict,
    describe_found,
    summarise_findings,
    summarise_verdict,
)
from heterophony.papers.claim_list import Finding, PaperClaim, compare_falls, compare_two
from heterophony.papers.claim_verdicts import ClaimVerdict, IntervalLevels, decide_claim
from heterophony.papers.evidence import ReferenceRuns, StoredRun, TrainingState, fit_line
from heterophony.papers.table import load_table
from heterophony.results.table import format_rows

TABLE = load_table("fedreg-table2-sota")
COLUMN = "Fashion-MNIST"
SEEN, NOT_SEEN = "seen at medium scale", "not seen at medium scale"
EVALUATED = list(range(21))


class Trained(ReferenceRuns):
    """Nets that have all learned."""

    def check_cells(self, *_) -> TrainingState:
        return TrainingState(True, "")


def decide(
    about: PaperClaim, found: list[StoredRun], references: ReferenceRuns | None = None
) -> ClaimVerdict:
    return decide_claim(about, found, Finding((about,)), references or Trained(()))


def claim(*below: str, **limits: float) -> PaperClaim:
    rows = below or ("FedAvg",)
    pairs = tuple(compare_two(("FedReG", COLUMN), (row, COLUMN)) for row in rows)
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
        ([4.0, 4.5, 3.5], {}, SEEN),
        ([4.0, 4.5, -8.0], {}, "undecided"),
        ([-4.0, -4.5, -3.5], {}, NOT_SEEN),
        ([4.0], {}, "undecided"),
        ([4.0, 4.5, 3.5], {"least": 2.0}, SEEN),
        ([4.0, 4.5, 3.5], {"least": 4.0}, "undecided"),
        ([4.0, 4.5, 3.5], {"least": 6.0}, NOT_SEEN),
        ([0.1, -0.1, 0.0], {"within": 1.0}, SEEN),
        ([4.0, 4.5, 3.5], {"within": 1.0}, NOT_SEEN),
        ([1.0, 1.5, 0.5], {"within": 1.0}, "undecided"),
    ],
)
def test_a_claim_is_decided_by_the_interval_over_seeds(gaps, limits, verdict):
    found = decide(claim(**limits), runs(gaps))
    assert (found.verdict, found.scale) == (verdict, "medium")


def test_seeds_are_paired():
    """Seeds differ by points, their pairs hardly: without pairing it could not be told."""
    far = [r for s in range(3) for r in (run("FedReG", s, level(50.0 + 10 * s + 0.5 + s / 10)),)]
    near = [run("FedAvg", s, level(50.0 + 10 * s)) for s in range(3)]
    found = decide(claim(), far + near)
    assert found.verdict == SEEN
    assert found.cases[0].differences[0].values == pytest.approx((0.5, 0.6, 0.7))


def test_one_seed_decides_nothing_and_says_so():
    found = decide(claim(), runs([40.0]))
    assert (
        found.why
        == "settings as in the text, best round: one seed, which decides nothing: FedReG − FedAvg = +40.00, 1 seed"
    )


def test_missing_rows_leave_an_ordering_undecided_but_may_refute_it():
    both = claim("FedAvg", "FedRoD")
    found = decide(both, runs([4.0, 4.5, 3.5]))
    assert found.verdict == "undecided"
    # two rules are looked at, so each has 97.5 %
    assert "not run: FedRoD; FedReG − FedAvg = +4.00 (+2.21 … +5.79, 97.5 %)" in found.why
    assert decide(both, runs([-40.0, -41.0, -42.0])).verdict == NOT_SEEN
    assert decide(both, []).why == "not run"


def test_a_claim_may_be_seen_with_some_settings_only():
    plain, varied = runs([0.5, -0.5, 0.0]), runs([4.0, 4.5, 3.5], variant="momentum-0")
    found = decide(claim(), plain + varied)
    assert found.verdict == "seen at medium scale under condition: momentum 0"
    assert classify_verdict(found.verdict) == "seen at medium scale under condition"
    against = runs([-4.0, -4.5, -3.5], variant="interleaved")  # it changes FedReG alone
    more = decide(claim(), [*plain, *varied, *(r for r in against if r.row == "FedReG")])
    assert "interleaved" in {case.variant for case in more.cases}


@pytest.mark.parametrize(
    ("best", "late", "verdict", "beside"),
    [
        (90.0, 70.0, SEEN, "not seen at medium scale, FedReG − FedAvg = −11"),
        (90.0, 81.5, SEEN, "undecided, FedReG − FedAvg = +0.50"),
        (90.0, 88.0, SEEN, None),
        (70.0, 70.0, NOT_SEEN, None),
    ],
)
def test_the_papers_rule_decides_and_the_last_ten_are_said_beside_it(best, late, verdict, beside):
    curve = [best] + [late] * 20
    found = decide(
        claim(),
        [r for s in range(3) for r in (run("FedReG", s, curve), run("FedAvg", s, level(80.0 + s)))],
    )
    assert [c.rule for c in found.cases] == ["best", "last10"]
    assert (found.verdict, found.rule) == (verdict, "best")
    text = describe_found(found)
    assert ("; the last ten evaluations disagree: " in text) == (beside is not None)
    assert beside is None or beside in text
    assert [row[1] for row in format_rows(build_case_table(found))] == [
        "best round",
        "last 10, beside",
    ]


def test_intervals_are_corrected_for_comparisons_settings_and_rules():
    levels = IntervalLevels(comparisons=9, settings=2, rules=2)
    assert levels.confirming == 1 - 0.05 / 4
    assert levels.refuting == 1 - 0.05 / 36
    gaps = [-3.0, -4.0, -5.0]
    assert decide(claim(), runs(gaps)).verdict == NOT_SEEN  # at 97.5 %: −7.6 … −0.4
    two = decide(claim(), runs(gaps) + runs([0.0, 0.1, -0.1], variant="momentum-0"))
    assert two.verdict == "undecided"  # at 98.75 %: −9.1 … +1.1
    many = claim("FedAvg", "FedProx", "FedDyn")  # rows that are not run were asked about as well
    assert decide(many, runs(gaps)).verdict == "undecided"


def test_a_control_of_ours_is_shown_and_decides_nothing():
    reg = [r for r in runs([4.0, 4.5, 3.5]) if r.row == "FedReG"]
    more = [run("FedAvg", s, level(85.0 + s), variant="equal-work") for s in range(3)]
    alone = decide(claim(), reg + more)
    assert {(c.variant, c.decision, c.control) for c in alone.cases} == {
        ("equal-work", "does not hold", True)
    }
    assert alone.verdict == "undecided"
    assert format_rows(build_case_table(alone))[0][0] == "medium scale, equal work (our control)"
    beside = decide(claim(), runs([9.0, 9.1, 8.9]) + more)
    assert beside.verdict == SEEN


def test_a_fall_is_compared_with_the_falls_of_others():
    table = load_table("fedreg-table4-robustness")
    before, after = "Fashion-MNIST, alpha 0.5", "Fashion-MNIST, alpha 0.1"
    pair = compare_falls("FedReG", "FedAvg", before, after)
    about = PaperClaim(table, "it falls least", "", "how", "G", (pair,))
    levels = {("FedReG", before): 90, ("FedReG", after): 88, ("FedAvg", before): 85}
    levels["FedAvg", after] = 80
    found = decide(
        about,
        [
            replace(run(row, s, level(value + s * value / 100)), table=table.name, column=column)
            for s in range(3)
            for (row, column), value in levels.items()
        ],
    )
    assert found.verdict == SEEN
    assert found.cases[0].differences[0].values == pytest.approx((3.0, 3.03, 3.06))
    assert "fall of FedAvg − fall of FedReG = +3.03" in found.why


def test_a_variant_of_one_row_is_compared_with_the_plain_runs_of_others():
    plain = [r for r in runs([4.0, 4.5, 3.5]) if r.row == "FedAvg"]
    turned = [run("FedReG", s, level(70.0 + s), variant="interleaved") for s in range(3)]
    found = decide(claim(), plain + turned)
    assert {(c.variant, c.decision) for c in found.cases} == {("interleaved", "does not hold")}


def test_attacks_are_judged_at_equal_loss_under_three_attackers():
    """Attacks have numbers instead of curves, and a verdict for each attacker."""
    table = load_table("feddecomp-table7")
    pair = compare_two(("FedAvg", "CIFAR-10"), ("FedDecomp", "CIFAR-10"))
    about = PaperClaim(table, "it leaks less", "2 against 1", "how", "psnr_mean", (pair,))
    found = decide(
        about,
        [
            replace(
                run(row, seed, []),
                table=table.name,
                column="CIFAR-10",
                evaluated=[],
                curves={},
                variant=f"personal-parameters-{known}",
                numbers={"psnr_mean": value + seed * (1 + value / 1000)},
            )
            for seed in range(3)
            for known, values in {
                "fresh": (14.0, 11.0),
                "initial": (14.0, 13.9),
                "known": (14.0, 16.0),
            }.items()
            for row, value in zip(("FedAvg", "FedDecomp"), values, strict=True)
        ],
    )
    assert found.verdict == (
        "seen at medium scale under condition: personal parameters fresh; personal parameters initial"
        " (not seen at medium scale: personal parameters known)"
    )
    assert found.rule == "matched"
    assert [(c.rule, c.seeds, c.parts) for c in found.cases] == [("matched", 3, ())] * 3


def test_runs_on_stand_in_data_are_shown_and_decide_nothing():
    found = decide(claim(), runs([4.0, 4.5, 3.5], scale="stand-in"))
    assert (found.verdict, found.scale) == ("undecided", "stand-in")
    assert describe_found(found).startswith("stand-in data, settings as in the text, best round: ")
    shown = ["undecided; seen on stand-in data"] * 2
    assert [row[2] for row in format_rows(build_case_table(found))] == shown
    assert [case["verdict"] for case in summarise_verdict(found)["cases"]] == shown
    more = runs([4.0, 4.5, 3.5, 4.1], scale="stand-in")
    assert decide(claim(), runs([0.5, -0.5, 0.0]) + more).scale == "medium"


def test_the_full_scale_counts_before_the_medium_one():
    full, small = runs([-4.0, -4.5, -3.5], scale="full"), runs([4.0, 4.5, 3.5])
    found = decide(claim(), full + small)
    assert (found.verdict, found.scale) == ("does not hold", "full")
    assert decide(claim(), runs([4.0, 4.5, 3.5], scale="full")).verdict == "holds"
    found = decide(claim(), runs([-4.0], scale="full") + small)  # one seed decides nothing
    assert (found.verdict, found.scale) == (SEEN, "medium")


def test_differences_over_the_rounds_are_paired_by_seed_and_round():
    rising = [float(t) for t in EVALUATED]
    found = decide(
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
    by_best, by_last = format_rows(build_case_table(found))
    assert by_best[-1].startswith("rounds 1–2: +2.0 (−4.4 … +8.4), rounds 3–5")
    assert by_last[-1] == ""


def test_one_line_says_what_decides_a_claim_or_why_nothing_does():
    assert describe_found(decide(claim(), [])) == "not run"
    few = decide(claim(), runs([4.0]))
    assert describe_found(few).startswith(
        "medium scale, settings as in the text, best round: one seed, which decides nothing: FedReG"
    )
    held = describe_found(decide(claim(), runs([4.0, 4.5, 3.5])))
    assert held.startswith("medium scale, settings as in the text, best round: FedReG − FedAvg")
    failed = describe_found(decide(claim(), runs([-4.0, -4.5, -3.5])))
    assert failed.startswith("medium scale, settings as in the text, best round: FedReG − FedAvg")


def test_programs_get_everything():
    found = summarise_verdict(decide(claim(), runs([4.0, 4.5, 3.5])))
    case = found["cases"][0]
    assert (found["verdict"], found["scale"], found["rule"]) == (SEEN, "medium", "best")
    assert found["finding"] == found["id"] == "fedreg-table2-sota: it is better"
    assert (case["scale"], case["variant"], case["rule"], case["seeds"]) == (
        *("medium", None, "best", 3),
    )
    assert case["differences"] == [
        {
            "first": [["FedReG", COLUMN]],
            "second": [["FedAvg", COLUMN]],
            "seeds": [0, 1, 2],
            "values": [4.0, 4.5, 3.5],
            "mean": 4.0,
            "ci95": [2.758, 5.242],
        }
    ]


# Findings -----------------------------------------------------------------------------------


def test_findings_are_counted_with_the_words_of_their_scale():
    small = decide(claim(), runs([4.0, 4.5, 3.5]))
    full = decide(claim(), runs([-4.0, -4.5, -3.5], scale="full"))
    found = [FindingVerdict(Finding((claim(),)), (one, one, one)) for one in (small, full, small)]
    assert summarise_findings(found) == (
        "3 findings from 9 claims: 0 hold by the method; at full scale 0 hold and 1 does not hold;"
        " at medium scale 2 are seen, 0 are not seen and 0 are not yet trained; 0 are undecided"
    )
    limited = replace(small, verdict="seen at medium scale under condition: momentum 0")
    assert "at medium scale 1 is seen (1 under a condition)," in summarise_findings(
        [FindingVerdict(Finding((claim(),)), (limited,))]
    )


# Nets that have not learned -----------------------------------------------------------------


def central(value: float, net: str = "convnet_small") -> list[StoredRun]:
    """Centralised training on the same images, with two seeds."""
    row = "FedReG, Fashion-MNIST"
    return [
        replace(run(row, s, level(value + s)), table="centralised", column="centralised", model=net)
        for s in range(2)
    ]


def check(found: list[StoredRun]) -> ClaimVerdict:
    return decide(claim(), found, ReferenceRuns(found))


def test_a_cell_counts_if_fedavg_reaches_most_of_centralised_training():
    found = runs([4.0, 4.5, 3.5])  # the mean of FedAvg is 77.0
    assert check([*found, *central(95.7)]).verdict == SEEN  # 0.8 of 96.2 is 76.96
    short = check([*found, *central(96.0)])
    assert short.verdict == "not yet trained"
    assert describe_found(short) == (
        "medium scale, settings as in the text, best round: FedAvg's G is 77.0, 0.798 of the 96.5"
        " of centralised training; FedReG − FedAvg = +4.00 (+2.21 … +5.79, 97.5 %), 3 seeds"
    )
    far = check([*runs([-40.0, -41.0, -42.0]), *central(160.0)])  # whatever the interval says
    assert (far.verdict, far.cases[0].decision) == ("not yet trained", "not yet trained")


def test_without_a_reference_nothing_is_decided():
    found = runs([4.0, 4.5, 3.5])
    for more, why in (
        ([], "no centralised training of convnet_small on fmnist-small"),
        (central(90.0, net="convnet"), "no centralised training of convnet_small on fmnist-small"),
    ):
        alone = check([*found, *more])
        assert alone.verdict == "undecided"
        assert why in alone.why
    rod = runs([4.0, 4.5, 3.5], row="FedRoD")
    alone = decide(claim("FedRoD"), rod, ReferenceRuns([*rod, *central(90.0)]))
    assert "FedAvg was not run with these settings and several seeds" in alone.why
    full = decide(claim(), runs([4.0, 4.5, 3.5], scale="full"), ReferenceRuns([]))
    assert full.verdict == "holds"  # the paper's own setting needs none


def test_fedavg_must_have_settled_over_the_last_fifth():
    """Rounds 16 to 20 count: a line through them must neither rise nor fall beyond their noise."""
    noise = [0.5, -0.5, 0.5, -0.5, 0.5]
    for rise, verdict in ((0.0, SEEN), (1.0, "not yet trained"), (-1.0, "not yet trained")):
        end = [77.0 + rise * i + n for i, n in enumerate(noise)]
        early = [77.0] * (len(EVALUATED) - len(end))
        avg = [run("FedAvg", s, early + end) for s in range(3)]
        reg = [run("FedReG", s, level(90.0 + s)) for s in range(3)]
        found = check([*avg, *reg, *central(85.0)])
        assert found.verdict == verdict
        text = {1.0: "and still rises: +4.0 points", -1.0: "and still falls: −4.0 points"}
        assert text.get(rise, "FedReG − FedAvg") in found.why


def test_the_rise_at_the_end_is_that_of_a_line():
    curve = [(t, (50 + 2 * t) / 100) for t in range(0, 51, 5)]
    line = fit_line(curve, 50)  # rounds 40, 45 and 50
    assert (line.points, line.rise) == (3, pytest.approx(20.0))
    assert line.squares == pytest.approx(0.0, abs=1e-9)
    assert line.leverage == 100 / 50


def test_a_variant_is_measured_by_fedavg_with_that_variant():
    """FedAvg without momentum has not learned; with momentum it has."""
    plain = runs([4.0, 4.5, 3.5])
    slow = [
        run(row, s, level(value + s), variant="momentum-0")
        for s in range(3)
        for row, value in (("FedReG", 60.0), ("FedAvg", 50.0))
    ]
    found = check([*plain, *slow, *central(90.0)])
    assert found.verdict == SEEN
    by_rule = {c.variant: c.decision for c in found.cases if c.rule == found.rule}
    assert by_rule == {"": "holds", "momentum-0": "not yet trained"}


def test_tables_without_fedavg_are_measured_by_that_of_another_with_the_same_settings():
    """FedReG's Table 1 has thresholds for rows; FedAvg with 5 of 20 clients is in FedReb's 5.5."""
    table, other = (
        load_table("fedreg-table1-augment-threshold"),
        load_table("fedreb-table5-5-cifar10"),
    )
    cell = next(c for c in table.cells if (c.row, c.column) == ("mean", "simple"))

    def small(row: str, where: str, column: str, value: float) -> list[StoredRun]:
        return [
            replace(run(row, s, level(value + s)), table=where, column=column, data="cifar10-small")
            for s in range(2)
        ]

    avg = small("FedAvg", other.name, "5 of 20, alpha 0.1", 50.0)
    pooled = small("FedReG, CIFAR-10", "centralised", "centralised", 60.0)
    assert ReferenceRuns([*avg, *pooled]).check_cell(table, cell, "medium").learned is True
    elsewhere = small("FedAvg", other.name, "20 of 100, alpha 0.1", 50.0)
    assert ReferenceRuns([*elsewhere, *pooled]).check_cell(table, cell, "medium").learned is None


def test_fedavg2rep_is_measured_by_its_own_baseline():
    """FedAvg with one class per client learns nothing, which is the claim; its baseline is IID."""
    table = load_table("fedavg2rep-table3-heterogeneity")
    for row, lr in (("CIFAR-100, N_C = 1", 0.1), ("Shakespeare", 1.0)):
        config = table.build_baseline(row, "J = 4")
        assert (config["algorithm"]["name"], config["training"]["lr"]) == ("fedavg", lr)
        assert config["data"]["partition"].get("per_client") is None
