"""The files that Mosquitto reads: its settings, and who may read and write which topics."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..protocol import topics

PID_FILE = "mosquitto.pid"
LOG_FILE = "mosquitto.log"
CONFIG_FILE = "mosquitto.conf"
ACL_FILE = "acl"
SERVER_NAME = topics.SERVER_NAME

# File names are relative to the folder, so the folder can be moved and have any name.
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
# without this a device could disconnect another one by using its client id
use_username_as_clientid true
max_connections 1000
allow_anonymous false
acl_file {ACL_FILE}
# our messages have at most 256 KiB and a little; three of these per device can be retained
max_packet_size 294912
max_keepalive 600
# without this a small message waits for the acknowledgement of the one before
set_tcp_nodelay true
max_inflight_messages 20
max_queued_messages 1000
max_queued_bytes 67108864
memory_limit 536870912
# whatever Mosquitto forgets, server and devices send again; a file would be written as a whole
# after every message
persistence false
sys_interval 0
pid_file {PID_FILE}
log_dest file {LOG_FILE}
log_type error
log_type warning
log_type notice
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""


def format_config(lan: bool, port: int) -> str:
    """Return the text of mosquitto.conf."""
    text = CONFIG_TEMPLATE.format(listener=f"listener {port}" + ("" if lan else " 127.0.0.1"))
    # started by root, Mosquitto would change to a user who cannot read the folder
    return text + ("user root\n" if os.geteuid() == 0 else "")


def format_acl(revoked: Sequence[str]) -> str:
    """Return the access control list; revoked names have no rights, even while connected."""
    return "\n".join(
        [
            "# Written by heterophony: changes are lost. %u is the name in the certificate.",
            f"user {SERVER_NAME}",
            f"topic readwrite {topics.make_server_pattern()}",
            "",
            f"user {topics.MAINTENANCE_NAME}",
            f"topic readwrite {topics.make_server_pattern()}",
            "",
            *(f"pattern {right} {topic}" for right, topic in topics.list_device_rights("%u")),
            *(f"\nuser {name}\ntopic deny #" for name in sorted(revoked)),
            "",
        ]
    )
