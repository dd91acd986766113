"""Shakespeare: LEAF's JSON and Gutenberg's text, users, windows, and a split in text order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import heterophony as hp
from helpers.sources import refused
from helpers.support import counts
from heterophony.core.samples import Scale
from heterophony.data.source import Source
from heterophony.data.sources import read_source
from heterophony.data.sources.leaf import (
    ALPHABET,
    collect_lines_by_role,
    encode_text,
    read_plain_text,
    slide_windows,
)


def text_of(made: Source, row: int) -> str:
    return "".join(ALPHABET[i] for i in made.x[row])


def said(text: str) -> dict[str, list[str]]:
    """One user's examples as LEAF writes them."""
    at = range(len(text) - 80)
    return {"x": [text[i : i + 80] for i in at], "y": [text[i + 80] for i in at]}


def leaf(path: Path, users: dict[str, dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(u["y"]) for u in users.values()]
    content = {"users": list(users), "num_samples": sizes, "user_data": users}
    path.write_text(json.dumps(content))
    return path


def prose(n: int, seed: int) -> str:
    letters = np.random.default_rng(seed).choice(list("abcdefghij ,.ABC"), n)
    return "".join(letters)


# The alphabet ---------------------------------------------------------------------------------


def test_the_alphabet_has_80_symbols_in_the_order_of_leaf():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    order = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
    assert order == ALPHABET


def test_what_is_not_in_the_alphabet_is_a_space():
    assert encode_text(ALPHABET).tolist() == list(range(80))
    assert encode_text("a\t~{é€\U0001f600\ud800ÿz").tolist() == [53, *[1] * 8, 78]
    assert encode_text("").tolist() == []


def test_windows_are_one_character_apart():
    text = prose(200, 0)
    x, y = slide_windows(text)
    assert x.shape == (120, 80)
    assert np.array_equal(x, np.stack([encode_text(text[i : i + 80]) for i in range(120)]))
    assert np.array_equal(y, encode_text(text[80:]))
    for short in ("", "a" * 80):
        assert slide_windows(short)[0].shape == (0, 80)
    assert np.array_equal(slide_windows("a  b\n\n" + text)[0][0], encode_text(("a b " + text)[:80]))


# LEAF's JSON ----------------------------------------------------------------------------------


def test_train_and_test_folders_keep_their_split(tmp_path):
    a, b = said(prose(100, 0)), said(prose(90, 1))
    c, d = said(prose(85, 2)), said(prose(83, 3))
    leaf(tmp_path / "train" / "all_data_0_train_9.json", {"PLAY_B": b})
    leaf(tmp_path / "train" / "all_data_1_train_9.json", {"PLAY_A": a})
    leaf(tmp_path / "test" / "all_data_0_test_9.json", {"PLAY_B": d, "PLAY_A": c})
    made = read_source("shakespeare", str(tmp_path))
    assert made.user_names == ("PLAY_A", "PLAY_B")
    assert made.official == 30
    assert made.users.tolist() == [0] * 20 + [1] * 10 + [0] * 5 + [1] * 3
    assert [text_of(made, i) for i in (0, 20, 30, 35)] == [u["x"][0] for u in (a, b, c, d)]
    assert "".join(ALPHABET[i] for i in made.y) == "".join("".join(u["y"]) for u in (a, b, c, d))
    assert made.x.dtype == np.int8
    assert made.scale == Scale()
    assert made.labels[:3] == ("newline", "space", "!")


@pytest.mark.parametrize(
    "name", ["all_data.json", "all_data_niid_0.json", "all_data/all_data.json"]
)
def test_unsplit_data_are_split_in_text_order_without_shared_characters(tmp_path, name):
    text = prose(1080, 0)
    path = leaf(tmp_path / name, {"LONG": said(text), "SHORT": said(text[:860]), "NONE": said("")})
    (tmp_path / "train").mkdir()  # LEAF makes it before it has split anything
    for place in (tmp_path, path):
        made = read_source("shakespeare", str(place))
        assert made.user_names == ("LONG",), "780 windows leave none to test"
        assert made.official == 900
        assert len(made.y) == 900 + 1000 - 979
        assert text_of(made, 899) == text[899:979]
        assert text_of(made, 900) == text[979:1059], "the first character after the last window"
        assert ALPHABET[made.y[-1]] == text[-1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not one of LEAF's files"),
        ("{", "is not one of LEAF's files"),
        ("[1]", "is not one of LEAF's files"),
        ('{"users": ["A"]}', "is not one of LEAF's files (lacks 'user_data')"),
        ('{"users": ["A"], "user_data": {}}', "is not one of LEAF's files (lacks 'A')"),
        (
            '{"users": ["A"], "user_data": {"A": 1}}',
            "user 'A' must have lists x and y of equal length",
        ),
        (
            '{"users": ["A"], "user_data": {"A": {"x": ["a"], "y": []}}}',
            "lists x and y of equal length",
        ),
        ('{"users": ["A"], "user_data": {"A": {"x": ["a"], "y": ["b"]}}}', "strings of 80 char"),
        ('{"users": ["A"], "user_data": {"A": {"x": [[1, 2]], "y": [1]}}}', "strings of 80 char"),
        ('{"users": [], "user_data": {}}', "has no user with enough text"),
    ],
)
def test_other_json_is_refused(tmp_path, content, words):
    path = tmp_path / "all_data.json"
    path.write_text(content)
    assert words in refused(read_source, "shakespeare", str(tmp_path))
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not one of LEAF's files" in refused(read_source, "shakespeare", str(tmp_path))


def test_a_user_in_two_files_is_refused(tmp_path):
    for i in range(2):
        leaf(tmp_path / "train" / f"{i}.json", {"A": said(prose(90, i))})
    leaf(tmp_path / "test" / "0.json", {"A": said(prose(90, 2))})
    assert "user 'A' is also in another file" in refused(read_source, "shakespeare", str(tmp_path))


# Gutenberg's text -----------------------------------------------------------------------------

TEXT = """
1603

ALLS WELL THAT ENDS WELL

by William Shakespeare

Dramatis Personae

  KING OF FRANCE

ACT I. SCENE 1.

  COUNTESS. In delivering my son from me, I bury a second husband.
  BERTRAM. And I in going, madam, weep o'er my father's death
    anew; but I must attend his Majesty's command, to whom I am now
    in ward, evermore in subjection.
                                                         Exeunt
  Countess. No.
  LAFEU. You shall find
    of the King a husband, madam;
THE END

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1

DUKE OF EPHESUS. Merchant of Syracuse, plead no more;
I am not partial to infringe our laws.
The enmity and discord
<<THIS ELECTRONIC VERSION>>
of nobody
AEGEON. Yet this my comfort:
"""


def test_roles_of_each_play_are_users():
    found = collect_lines_by_role(TEXT.splitlines())
    assert list(found) == [
        "ALLS_WELL_THAT_ENDS_WELL_COUNTESS",
        "ALLS_WELL_THAT_ENDS_WELL_BERTRAM",
        "ALLS_WELL_THAT_ENDS_WELL_LAFEU",
        "THE_COMEDY_OF_ERRORS_DUKE_OF_EPHESUS",
        "THE_COMEDY_OF_ERRORS_AEGEON",
    ]
    assert found["ALLS_WELL_THAT_ENDS_WELL_COUNTESS"] == [
        "In delivering my son from me, I bury a second husband.",
        "No.",
    ]
    assert found["ALLS_WELL_THAT_ENDS_WELL_LAFEU"] == [
        "You shall find",
        "of the King a husband, madam;",
    ]
    assert found["THE_COMEDY_OF_ERRORS_DUKE_OF_EPHESUS"] == [
        "Merchant of Syracuse, plead no more;",
        "I am not partial to infringe our laws.",
        "The enmity and discord",
    ]


SONNETS = """
1609

THE SONNETS

by William Shakespeare

                     1
  From fairest creatures we desire increase,
  And. so a line that looks like a role
    and goes on,
    and on.
"""


def test_the_sonnets_are_no_roles():
    """LEAF skips them; with them, 19 roles would shift the clients of a published partition."""
    assert collect_lines_by_role((SONNETS + TEXT).splitlines()) == collect_lines_by_role(
        TEXT.splitlines()
    )


def test_the_text_of_1994_has_the_counts_of_leaf():
    """Where the file is: LEAF's script finds these in it."""
    place = os.environ.get("HETEROPHONY_SHAKESPEARE")
    if place is None:
        pytest.skip("HETEROPHONY_SHAKESPEARE does not name the text of 1994")
    users = read_plain_text([Path(place)])
    counts = [len(y) for _, y in users.values() if len(y)]
    assert (len(counts), sum(counts)) == (1130, 4_226_206)


def play(roles: dict[str, list[str]]) -> str:
    head = "1599\n\nA PLAY\n\nby William Shakespeare\n\n"
    return head + "".join(
        f"  {role}. {lines[0]}\n" + "".join(f"    {line}\n" for line in lines[1:])
        for role, lines in roles.items()
    )


def test_the_text_becomes_users_with_windows(tmp_path):
    lines = [prose(400, i).replace(".", "x").strip() for i in range(3)]
    path = tmp_path / "100.txt"
    path.write_text(play({"ANNE": lines, "BERT": lines[:2], "CARL": ["a", "b", "c"]}))
    for place in (path, tmp_path):
        made = read_source("shakespeare", str(place))
        assert made.user_names == ("A_PLAY_ANNE",), "two lines are too few, three letters as well"
        whole = " ".join(" ".join(lines).split()) + " "  # as LEAF, which ends every line
        n = len(whole) - 80
        assert made.official == int(0.9 * n)
        assert len(made.y) == n - 79
        assert text_of(made, 0) == whole[:80]
        assert made.users.tolist() == [0] * (n - 79)


def test_a_text_without_plays_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear\n" * 100)
    assert "no user with enough text" in refused(read_source, "shakespeare", str(tmp_path))
    (tmp_path / "letter.txt").write_bytes(bytes(range(256)))
    assert "no user with enough text" in refused(read_source, "shakespeare", str(tmp_path))


def test_fedavg_learns_on_characters_with_the_model_for_them(tmp_path):
    leaf(tmp_path / "all_data.json", {"A": said("oh no " * 160)})
    place, parts = str(tmp_path), hp.IID()
    federation = hp.federate(
        "shakespeare", path=place, clients=2, partition=parts, train_fraction=0.95
    )
    how = hp.Training(epochs=0, steps=8, batch=4, lr=1.0)
    result = hp.run("fedavg", federation, rounds=2, training=how, evaluate_every=2)
    assert type(result.generic().net.base[0]).__name__ == "CharacterEncoder"
    first, last = counts(result, "G")
    assert sum(last) >= sum(first) + 5
