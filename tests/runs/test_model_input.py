"""Trained models take examples as the user has them, scaled as in training, or refuse them in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import heterophony as hp
from helpers.support import played
from heterophony.core.errors import DataError
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from heterophony.runs.model import ModelInput

DRAW = np.random.default_rng(0)
LABELS = np.arange(60) % 3
COLOURED = DRAW.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)


def trained(x: np.ndarray) -> hp.Result:
    federation = hp.federate((x, LABELS), clients=2, partition="iid")
    return played("fedper", federation, rounds=1, model="mlp")


@pytest.fixture(scope="module")
def result() -> hp.Result:
    return trained(COLOURED)


def test_a_model_takes_the_layout_that_the_user_gave(result):
    images = COLOURED[:4]
    for model in (result.personal("0"), result.generic()):
        expected = model(torch.as_tensor(images).movedim(-1, 1))
        assert torch.equal(model(images), expected)
        assert torch.equal(model(torch.as_tensor(images)), expected)
        assert torch.equal(model(images.astype(np.int64)), expected)
        scaled = BYTES_TO_PLUS_MINUS_ONE(torch.as_tensor(images))
        assert torch.equal(model(scaled), expected)
        assert torch.equal(model(scaled.double()), expected)


def test_it_is_what_was_measured(result):
    """The accuracy of P, computed from the user's own array."""
    federation = result.plan.federation
    rows = federation.test["0"]
    stored = federation.x[rows].movedim(1, -1).numpy()  # N×H×W×C, as given
    right = int((result.personal("0")(stored).argmax(1) == federation.y[rows]).sum())
    assert right == result.clients["0"].correct


def test_grey_images_need_no_channel():
    grey = COLOURED[..., 0]
    model = trained(grey).personal("0")
    assert torch.equal(model(grey[:4]), model(grey[:4, None]))
    assert torch.equal(model(grey[:4, ..., None]), model(grey[:4, None]))


def test_numbers_are_used_as_they_were_in_training():
    numbers = (COLOURED / 255).astype(np.float32)
    model = trained(numbers).personal("0")
    assert torch.equal(model(numbers[:4]), model(numbers[:4].transpose(0, 3, 1, 2)))
    assert torch.equal(model(numbers[:4].astype(np.float64)), model(numbers[:4]))
    with pytest.raises(DataError, match="floating-point inputs, but these are uint8"):
        model(COLOURED[:4])


WRONG = {
    "one example": (COLOURED[0], r"not 8×8×3; for a single example pass a batch of one: x\[None\]"),
    "one channel": (COLOURED[..., :1], "expects examples of N×3×8×8 or N×8×8×3, not 60×8×8×1"),
    "no channel": (COLOURED[..., 0], "not 60×8×8$"),
    "another size": (COLOURED[:, :7], "not 60×7×8×3$"),
    "bytes as numbers": (COLOURED.astype(np.float32), "numbers up to 255 are not scaled"),
    "no bytes": (COLOURED.astype(np.int64) * 2, "range from 0 to 510"),
}


@pytest.mark.parametrize(("x", "said"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_in_one_line(result, x, said):
    with pytest.raises(DataError, match=said) as refusal:
        result.personal("0")(x)
    assert "\n" not in str(refusal.value)


def test_tokens_may_be_of_any_length():
    tokens = ModelInput((80,), torch.int64, Scale())
    x = torch.ones(2, 5, dtype=torch.int64)
    assert torch.equal(tokens.convert(x), x)
