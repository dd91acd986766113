"""A wheel of the very code that runs here, the same bytes every time: boards compare its hash."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ... import __version__
from ...core.errors import ConfigError

NAME = "heterophony"
DATE = (2020, 1, 1, 0, 0, 0)  # of all files in it: equal code must be equal bytes
SKIPPED = ("__pycache__",)


def build_own_wheel() -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel of this package."""
    info = f"{NAME}-{__version__}.dist-info"
    contents = {
        **read_package(),
        f"{info}/METADATA": read_metadata().encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: heterophony\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nheterophony = heterophony.cli:main\n",
    }
    record = [f"{path},sha256={encode_digest(data)},{len(data)}" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return f"{NAME}-{__version__}-py3-none-any.whl", buffer.getvalue()


def read_package() -> dict[str, bytes]:
    """Read all files of the package, sorted by their path."""
    root = Path(__file__).parents[2]
    files = sorted(p for p in root.rglob("*") if p.is_file() and not set(SKIPPED) & set(p.parts))
    return {f"{NAME}/{p.relative_to(root).as_posix()}": p.read_bytes() for p in files}


def read_metadata() -> str:
    """Read the metadata that pip needs, with the version of the code."""
    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        raise ConfigError(
            "heterophony itself is not installed here, so its wheel has no list of packages; install"
            " it with pip first"
        ) from None
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    head, _, _ = text.partition("\n\n")  # without the long description
    lines = [
        line
        for line in head.splitlines()
        if line.startswith(("Metadata-Version", "Name", "Requires", "Provides"))
    ]
    lines.insert(2, f"Version: {__version__}")
    return "\n".join(lines) + "\n"


def encode_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
