"""A real Mosquitto for tests, with enrolments of the server and devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heterophony.boards.broker import process
from heterophony.boards.broker.broker import Broker
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.broker.enrolment import read_enrolment as enrolled
from heterophony.core.errors import ConfigError


def installed() -> None:
    """Skip a test if Mosquitto is not installed; fail it in CI."""
    try:
        process.find_mosquitto()
    except ConfigError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextmanager
def mosquitto(folder: Path, *names: str) -> Iterator[tuple[Broker, dict[str, Enrolment]]]:
    """Run a broker; yield it and the enrolments of the server and of these devices.

    Enrolments of devices are also files in the folder.
    """
    installed()
    made = Broker(folder / "broker")
    made.start(port=0)
    try:
        known = {name: made.enrol(name, folder / f"{name}.toml") for name in names}
        yield made, known | {"server": enrolled(made.server_enrolment_file)}
    finally:
        made.stop()
