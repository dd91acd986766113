"""Settings: what a user wrote is taken exactly, or refused with the place and the nearest right word."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

import heterophony as hp
from heterophony.algorithms.fedavgm import FedAvgM
from heterophony.algorithms.fedprox import FedProx
from heterophony.algorithms.fedreg import FedReG
from heterophony.core.errors import ConfigError, choose, suggest_or_list
from heterophony.core.settings import construct, describe_range, list_settings, setting
from heterophony.core.training import Training
from heterophony.data.partitions import IID, PARTITIONS, Classes, Dirichlet, build_partition
from heterophony.population.participation import Uniform

NAN, INF = float("nan"), float("inf")


def message(make, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        make(*args, **kwargs)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Unknown and missing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "wrong", "right"),
    [
        (FedProx, "Mu", "mu"),
        (FedReG, "treshold", "threshold"),
        (FedReG, "augmnet", "augment"),
        (FedReG, "weight", "weights"),
        (Dirichlet, "aplha", "alpha"),
        (Dirichlet, "minsize", "min_size"),
        (Classes, "per_clients", "per_client"),
        (Training, "batch_size", "batch"),
    ],
)
def test_an_unknown_key_gets_its_place_and_the_nearest_right_one(cls, wrong, right):
    said = message(construct, cls, {wrong: 1}, "some.place")
    assert said == f"some.place.{wrong}: unknown key; did you mean '{right}'?"


def test_with_nothing_near_all_keys_are_listed():
    said = message(construct, FedProx, {"zzz": 1}, "algorithm")
    assert said == "algorithm.zzz: unknown key; choose from: mu"


def test_where_there_are_no_keys_nothing_is_suggested():
    @dataclass(frozen=True)
    class Bare:
        pass

    assert message(construct, Bare, {"alpha": 1}, "some.place") == "some.place.alpha: unknown key"


def test_a_missing_key_is_named():
    @dataclass(frozen=True)
    class Needs:
        must: int

    assert message(construct, Needs, {}, "here") == "here.must: missing"
    assert construct(Needs, {"must": 3}, "here").must == 3


def test_class_variables_are_no_settings():
    assert [f.name for f in list_settings(FedProx)] == ["mu"]
    assert "personal" in message(construct, FedReG, {"personal": ()}, "algorithm")


# Types --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [True, False, "0.1", None, [0.1], {}])
def test_a_number_must_be_one(wrong):
    for cls, name in ((FedProx, "mu"), (Dirichlet, "alpha"), (FedAvgM, "beta")):
        said = message(construct, cls, {name: wrong}, "x")
        assert said == f"x.{name}: must be a number, not {wrong!r}"


@pytest.mark.parametrize("wrong", [True, False, 2.0, 2.5, "2", None])
def test_a_whole_number_must_be_one_and_true_is_none(wrong):
    for cls, name in ((Dirichlet, "min_size"), (Classes, "per_client"), (Training, "batch")):
        said = message(construct, cls, {name: wrong}, "x")
        assert said == f"x.{name}: must be a whole number, not {wrong!r}"


@pytest.mark.parametrize("wrong", [0, 1, "true", None])
def test_a_switch_must_be_true_or_false(wrong):
    said = message(construct, Classes, {"balanced": wrong}, "x")
    assert said == f"x.balanced: must be true or false, not {wrong!r}"


def test_a_whole_number_is_a_good_number():
    assert FedProx(mu=1).mu == 1
    assert Dirichlet(alpha=1).alpha == 1
    assert construct(FedProx, {"mu": 0}, "x").mu == 0


def test_an_optional_number_may_be_left_out_but_not_be_something_else():
    assert Training(steps=None).steps is None
    assert Training(steps=4).steps == 4
    for wrong in (True, 4.0, "4"):
        assert message(construct, Training, {"steps": wrong}, "training").startswith(
            "training.steps: "
        )
    for wrong in (True, "0.2"):
        assert message(construct, Uniform, {"rate": wrong}, "x").startswith("x.rate: ")


# Ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "values", "words"),
    [
        (FedProx, {"mu": -0.001}, "mu: must be at least 0, not -0.001"),
        (FedProx, {"mu": -1}, "mu: must be at least 0, not -1"),
        (Dirichlet, {"alpha": 0}, "alpha: must be above 0, not 0"),
        (Dirichlet, {"alpha": 0.0}, "alpha: must be above 0, not 0.0"),
        (Dirichlet, {"alpha": -0.5}, "alpha: must be above 0, not -0.5"),
        (Dirichlet, {"min_size": 0}, "min_size: must be at least 1, not 0"),
        (Dirichlet, {"max_retries": -2}, "max_retries: must be at least 1, not -2"),
        (Classes, {"per_client": 0}, "per_client: must be at least 1, not 0"),
        (Training, {"momentum": 1.5}, "momentum: must be at least 0 and at most 1, not 1.5"),
        (Training, {"batch": 0}, "batch: must be at least 1, not 0"),
        (Training, {"steps": -1}, "steps: must be at least 0, not -1"),
        (Uniform, {"rate": 0.0}, "rate: must be above 0 and at most 1, not 0.0"),
        (Uniform, {"rate": 1.01}, "rate: must be above 0 and at most 1, not 1.01"),
        (Uniform, {"count": 0}, "count: must be at least 1, not 0"),
    ],
)
def test_out_of_range_is_refused_with_the_range(cls, values, words):
    assert message(construct, cls, values, "x") == f"x.{words}"
    assert message(cls, **values) == words, "also where nobody wrote a file"


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_nan_and_infinity_are_no_settings(wrong):
    for cls, name in ((FedProx, "mu"), (Dirichlet, "alpha"), (Training, "lr"), (Uniform, "rate")):
        said = message(construct, cls, {name: wrong}, "x")
        assert said.startswith(f"x.{name}: must be ")
        assert said.startswith(f"x.{name}: must be a finite number")
        assert said.endswith(f", not {wrong!r}")


def test_a_number_without_limits_must_still_be_finite():
    @dataclass(frozen=True)
    class Free:
        value: float = setting(0.0, "any")

        def __post_init__(self) -> None:
            from heterophony.core.settings import check_settings

            check_settings(self)

    assert Free(-1e30).value == -1e30
    assert describe_range(list_settings(Free)[0]) == "a finite number"
    for wrong in (NAN, INF, -INF):
        assert message(Free, wrong) == f"value: must be a finite number, not {wrong!r}"


def test_the_ends_of_a_range_belong_to_it():
    assert FedProx(mu=0.0).mu == 0.0
    assert Training(momentum=1.0, lr=0, epochs=0).momentum == 1.0
    assert Uniform(rate=1.0).rate == 1.0
    assert Dirichlet(alpha=5e-324, min_size=1, max_retries=1).min_size == 1


# Choices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("threshold", "meen", "mean"),
        ("threshold", "second-min", "second_min"),
        ("threshold_scope", "class_nonzeros", "class_nonzero"),
        ("augment", "simpel", "simple"),
        ("weights", "Split", "split"),
    ],
)
def test_a_wrong_choice_gets_the_nearest_right_one(name, wrong, right):
    said = message(construct, FedReG, {name: wrong}, "algorithm")
    assert said.startswith(f"algorithm.{name}: must be one of ")
    assert said.endswith(f"not {wrong!r}; did you mean '{right}'?")


def test_a_wrong_choice_with_nothing_near_gets_all_of_them_once():
    said = message(construct, FedReG, {"threshold": "zzz"}, "algorithm")
    assert (
        said == "algorithm.threshold: must be one of mean, max, median, second_min, min, not 'zzz'"
    )


@pytest.mark.parametrize("wrong", [1, True, None, ["mean"], 0.5])
def test_a_choice_of_words_takes_only_words(wrong):
    said = message(construct, FedReG, {"threshold": wrong}, "algorithm")
    assert said == (
        f"algorithm.threshold: must be one of mean, max, median, second_min, min, not {wrong!r}"
    )


@pytest.mark.parametrize("threshold", ["mean", "max", "median", "second_min", "min"])
@pytest.mark.parametrize("augment", ["simple", "auto", "copy"])
def test_every_right_choice_is_taken(threshold, augment):
    made = construct(FedReG, {"threshold": threshold, "augment": augment}, "algorithm")
    assert (made.threshold, made.augment) == (threshold, augment)


# Partitions and all the rest ----------------------------------------------------------------


def test_a_partition_is_what_the_user_wrote():
    assert build_partition({"kind": "dirichlet", "alpha": 0.5}) == Dirichlet(0.5)
    assert build_partition({"kind": "classes", "per_client": 3, "balanced": False}) == Classes(
        3, False
    )
    assert build_partition({"kind": "iid"}) == IID()
    assert build_partition({"alpha": 0.3}) == Dirichlet(0.3), "Dirichlet is the default"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"kind": "dirichelt"},
            "data.partition.kind: unknown name 'dirichelt'; did you mean 'dirichlet'?",
        ),
        (
            {"kind": "zzz"},
            "data.partition.kind: unknown name 'zzz'; choose from: classes, dirichlet, file",
        ),
        ({"kind": "iid", "alpha": 1}, "data.partition.alpha: unknown key"),
        (
            {"kind": "classes", "alpha": 1},
            "data.partition.alpha: unknown key; choose from: balanced",
        ),
        ({"alpha": "x"}, "data.partition.alpha: must be a number, not 'x'"),
        ({"alpha": NAN}, "data.partition.alpha: must be a finite number, above 0, not nan"),
    ],
)
def test_a_wrong_partition_is_refused_with_its_place(values, words):
    assert message(build_partition, values).startswith(words)


def test_the_caller_keeps_what_it_passed():
    values = {"kind": "dirichlet", "alpha": 0.5}
    build_partition(values)
    assert values == {"kind": "dirichlet", "alpha": 0.5}


@pytest.mark.parametrize("cls", [FedProx, FedReG, Training, Uniform, *PARTITIONS.values()])
def test_every_setting_explains_itself_and_nobody_can_change_one(cls):
    assert all(f.metadata["doc"] for f in list_settings(cls))
    made = cls(count=1) if cls is Uniform else cls()
    for f in list_settings(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, f.name, getattr(made, f.name))


def test_suggestions():
    assert suggest_or_list("fedporx", ["fedavg", "fedprox"]) == "; did you mean 'fedprox'?"
    assert suggest_or_list("x", ["b", "a"]) == "; choose from: a, b"
    assert suggest_or_list("x", []) == ""


def test_a_choice_is_returned_or_refused_with_the_nearest_name():
    assert choose({"fedavg": 1, "fedprox": 2}, "fedprox", "algorithm.name") == 2
    with pytest.raises(
        ConfigError, match=r"^a\.b: unknown name 'fedporx'; did you mean 'fedprox'\?$"
    ):
        choose({"fedavg": 1, "fedprox": 2}, "fedporx", "a.b")


def test_a_number_that_no_file_can_hold_is_refused_in_one_line():
    shown = "must be below 2**63, not a number of 400 digits"
    assert message(Training, epochs=10**399) == f"epochs: {shown}"


def test_a_setting_must_not_have_the_name_of_what_every_algorithm_has():
    with pytest.raises(ConfigError, match=r"^algorithm Own: setting 'pooled' has the same name as"):
        type("Own", (hp.Algorithm,), {"pooled": setting(1.0, "a number")})
