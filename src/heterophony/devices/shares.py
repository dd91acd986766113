"""A client's share of a partitioned data set as one .npz: all that its device needs of the data.

The examples are as the partition gives them, feature skew included, so a device with shares computes
the same bits as one with the whole data set.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError
from ..core.files import UnsuitableFileError, read_regular_file
from ..core.samples import Scale
from ..data.federation import Federation
from ..data.transforms import Transform

PARTS = ("train", "test", "validation")
MAX_BYTES = 8 << 30


def encode_share(federation: Federation, client: str) -> bytes:
    """Return the bytes of a client's share; equal data give equal bytes."""
    transform = federation.transform
    if transform is not None and transform.moves is not None and transform.moves.frozen:
        raise ConfigError(
            "data.frozen_augment: depends on the whole data set, so it cannot be sent as shares"
        )
    if federation.task == "regression":
        raise ConfigError(
            "data.task: R² depends on all clients' targets, so they cannot be sent as shares"
        )
    arrays: dict[str, NDArray[Any]] = {}
    for part in PARTS:
        if client in getattr(federation, part):
            samples = federation.samples(client, part)
            arrays[f"x_{part}"] = samples.get_all_stored().numpy()
            arrays[f"y_{part}"] = samples.labels.numpy()
    about = {
        "name": federation.name,
        "labels": federation.labels,
        "scale": asdict(federation.scale),
        "transform": transform and asdict(transform),
        "task": federation.task,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def load_shares(folder: Path, clients: list[str]) -> Federation:
    """Load the shares of these clients as a federation of their own."""
    shares = {client: read_share(folder / f"{client}.npz") for client in clients}
    first = shares[clients[0]]
    about = json.loads(first["about"].tobytes())
    x: list[NDArray[Any]] = []
    y: list[NDArray[Any]] = []
    rows: dict[str, dict[str, torch.Tensor]] = {part: {} for part in PARTS}
    begin = 0
    for client, arrays in shares.items():
        if arrays["about"].tobytes() != first["about"].tobytes():
            raise DataError(
                f"{folder}: the shares of {client} and {clients[0]} are of different runs"
            )
        for part in PARTS:
            if f"x_{part}" in arrays:
                count = len(arrays[f"y_{part}"])
                rows[part][client] = torch.arange(begin, begin + count)
                begin += count
                x.append(arrays[f"x_{part}"])
                y.append(arrays[f"y_{part}"])
    return Federation(
        about["name"],
        torch.from_numpy(np.concatenate(x)),
        torch.from_numpy(np.concatenate(y)),
        Scale.from_dict(about["scale"]),
        tuple(about["labels"]),
        rows["train"],
        rows["test"],
        transform=about["transform"] and Transform.from_dict(about["transform"]),
        validation=rows["validation"],
        task=about["task"],
    )


def read_share(path: Path) -> Mapping[str, NDArray[Any]]:
    """Read one share; a file of another kind is one line."""
    try:
        with np.load(io.BytesIO(read_regular_file(path, MAX_BYTES)), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        complete = {"x_train", "y_train", "x_test", "y_test", "about"} <= arrays.keys()
    except FileNotFoundError:
        raise DataError(
            f"there is no share {path}; copy it with: heterophony fleet HOSTS data"
        ) from None
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, UnsuitableFileError):
        complete = False
    if not complete:
        raise DataError(
            f"{path} is not a client's share; copy it again: heterophony fleet HOSTS data"
        )
    return arrays
