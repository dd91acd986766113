"""Small data sets as PFLlib and LEAF write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DRAW = np.random.default_rng(0)


def write_pfllib(folder: Path, clients: int = 3) -> Path:
    for part, size in (("train", 6), ("test", 2)):
        (folder / part).mkdir(parents=True)
        for i in range(clients):
            x = DRAW.normal(size=(size + i, 1, 4, 4)).astype(np.float32)
            content = {"x": x, "y": np.arange(size + i) % 3}
            with open(folder / part / f"{i}.npz", "wb") as file:
                np.savez_compressed(file, data=content)
    (folder / "config.json").write_text(json.dumps({"num_clients": clients, "num_classes": 4}))
    return folder


def leaf_part(sizes: dict[str, int], width: int = 5) -> dict[str, object]:
    data = {
        u: {
            "x": [[i + j / 4 for j in range(width)] for i in range(n)],
            "y": [i % 2 for i in range(n)],
        }
        for u, n in sizes.items()
    }
    return {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}


def write_leaf(folder: Path, width: int = 5) -> Path:
    for part, sizes in (("train", {"f10": 4, "f2": 6}), ("test", {"f2": 2, "f10": 3})):
        (folder / part).mkdir(parents=True)
        path = folder / part / f"all_data_niid_0_keep_0_{part}_9.json"
        path.write_text(json.dumps(leaf_part(sizes, width)))
    return folder


def read_as_pfllib(path: Path) -> dict[str, np.ndarray]:
    """Read a file with the line that PFLlib uses."""
    with open(path, "rb") as file:
        content: dict[str, np.ndarray] = np.load(file, allow_pickle=True)["data"].tolist()
    return content
