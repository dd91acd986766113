"""What Mosquitto is told: its settings, and who may read and write which topics."""

from __future__ import annotations

import os
from collections.abc import Sequence

PID_FILE, LOG_FILE, CONFIG_FILE, ACL_FILE = (
    "mosquitto.pid",
    "mosquitto.log",
    "mosquitto.conf",
    "acl",
)
TOPIC_ROOT = "het/1"  # all topics are below it
SERVER_NAME = "server"  # the one name that is no device's

# Names of files are relative to the folder, which may so be moved, and have any name.
CONFIG_TEMPLATE = f"""\
# Written by heterophony at every `broker up`: changes are lost.
{{listener}}
cafile ca.pem
certfile broker.pem
keyfile broker.key
crlfile revoked.pem
tls_version tlsv1.2
require_certificate true
use_identity_as_username true
# else any device could throw out another by calling itself as that one does
use_username_as_clientid true
max_connections 1000
allow_anonymous false
acl_file {ACL_FILE}
# ours have at most 256 KiB and a little
max_packet_size 1048576
max_keepalive 600
# else small messages wait for the acknowledgement of the one before
set_tcp_nodelay true
max_inflight_messages 20
max_queued_messages 1000
max_queued_bytes 67108864
memory_limit 536870912
# without these, half of what was acknowledged is gone when Mosquitto is killed
persistence true
persistence_location ./
autosave_on_changes true
autosave_interval 1
sys_interval 0
pid_file {PID_FILE}
log_dest file {LOG_FILE}
log_type error
log_type warning
log_type notice
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""

ACL_TEMPLATE = f"""\
# Written by heterophony: changes are lost. %u is the name in the certificate.
user {SERVER_NAME}
topic readwrite {TOPIC_ROOT}/#

pattern read {TOPIC_ROOT}/+/ctl
pattern read {TOPIC_ROOT}/+/d/%u/down/#
pattern write {TOPIC_ROOT}/+/d/%u/up/#
pattern readwrite {TOPIC_ROOT}/+/d/%u/status
"""


def format_config(lan: bool, port: int) -> str:
    """mosquitto.conf."""
    text = CONFIG_TEMPLATE.format(listener=f"listener {port}" + ("" if lan else " 127.0.0.1"))
    # started by root it would become a user who cannot read the folder
    return text + ("user root\n" if os.geteuid() == 0 else "")


def format_acl(shut_out: Sequence[str]) -> str:
    """Who may read and write what; a name that is shut out has no rights, even while connected."""
    return ACL_TEMPLATE + "".join(f"\nuser {name}\ntopic deny #\n" for name in sorted(shut_out))
