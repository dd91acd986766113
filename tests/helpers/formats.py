"""Small data sets in the formats of PFLlib and LEAF, and a table like those of pandas."""

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
    """Read a file in the same way as PFLlib."""
    with open(path, "rb") as file:
        content: dict[str, np.ndarray] = np.load(file, allow_pickle=True)["data"].tolist()
    return content


class Series(list):
    """A stand-in for a column of pandas."""

    def tolist(self) -> list[object]:
        return list(self)


class Frame:
    """A stand-in for a DataFrame of pandas."""

    def __init__(
        self,
        columns: dict[str, list[object]],
        dtypes: dict[str, str] | None = None,
        twice: str | None = None,
    ) -> None:
        self.columns, self._held = [*columns, *filter(None, [twice])], columns
        self.dtypes = [(dtypes or {}).get(name, "object") for name in self.columns]
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name: str) -> Series:
        return Series(self._held[name])


HELD = {
    "age": [30, None, 50, 60, 70, float("nan"), 20, 40],
    "sex": ["f", "m", None, "f", "m", "f", "m", "f"],
    "ward": [1, 2, 1, 2, 1, 2, 3, 1],
    "hospital": ["B", "A", "A", "B", "A", "A", "B", "B"],
    "label": ["ill", "well", "ill", "well", "ill", "well", "ill", "well"],
}
