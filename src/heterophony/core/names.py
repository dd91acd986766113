"""The form of names that become parts of file names and of MQTT topics: runs, devices, clients."""

from __future__ import annotations

import re

NAME_PATTERN = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")
NAME_RULE = "use 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.'"
