"""The enrolment on a board: what it says but the key, and a new address for it."""

from __future__ import annotations

import os
import re
import secrets
import tomllib
from pathlib import Path
from typing import Any

FILE = "enrolment.toml"


def describe_enrolment(request: dict[str, Any]) -> dict[str, Any]:
    """Return the certificate and the broker's address; never the key."""
    path = Path.home() / request["folder"] / FILE
    try:
        content = tomllib.loads(path.read_text())
        return {k: content[k] for k in ("device", "address", "port", "certificate")}
    except (OSError, ValueError, KeyError):
        return {"device": "", "address": "", "port": 0, "certificate": ""}


def change_address(request: dict[str, Any]) -> dict[str, Any]:
    """Write another address of the broker into the enrolment; the key stays on the board."""
    path = Path.home() / request["folder"] / FILE
    text = re.sub(r"(?m)^port = .*$", f"port = {int(request['port'])}", path.read_text())
    address = request["address"].replace("\\", "").replace('"', "")
    text = re.sub(r"(?m)^address = .*$", f'address = "{address}"', text)
    new = path.with_name(f".{FILE}.{secrets.token_hex(8)}.new")
    with open(new, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    new.replace(path)
    return {}
