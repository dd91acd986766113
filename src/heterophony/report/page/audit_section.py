"""The privacy audit on the report page: its table, and some of the recovered images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...algorithms import get_display_name
from ...analysis.runs import Run
from ...core.files import read_json
from ...privacy.matching import collect_matched_rounds, list_common_levels
from ...privacy.summary import (
    PRIVATE_KNOWLEDGE,
    collect_attacks,
    list_parts,
)
from ...runs.run_index import read_json_lines

AuditRecord = dict[str, Any]
MAX_IMAGES = 8  # rows of images


def build_audit_section(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The section of the audit that these runs belong to; None if they belong to none."""
    folders = dict.fromkeys(r.folder.parent for r in runs)
    audited = [f for f in folders if (f / "audit.json").is_file()]
    return read_audit_section(audited[0]) if audited else None


def read_audit_section(folder: Path) -> dict[str, Any] | None:
    content, records = (
        read_json(folder / "audit.json"),
        list(read_json_lines(folder / "attacks.jsonl")),
    )
    if not content["rows"]:
        return None
    originals, columns, attacks = select_images(records)
    parts = list_parts(content)
    rows = [
        [
            f"{get_display_name(r['algorithm'])}, {r['private']}",
            *format_metrics(r),
            *(part.format_psnr(r) for part in parts),
        ]
        for r in content["rows"]
    ]
    empty = [""] * len(parts)
    rows += [[name, *format_metrics(r), *empty] for name, r in content["references"].items()]
    how = content["asked"]["how"]
    return {
        "attack": f"Attack: {how['attack']}, {how['iterations']} iterations, labels {how['labels']}",
        "titles": [
            *("PSNR mean", "PSNR max", "SSIM mean", "SSIM max"),
            *(part.title for part in parts),
        ],
        "rows": rows,
        "shape": content["asked"]["shape"],
        "when": describe_shown_rounds(records),
        "columns": [
            "original",
            *(f"{get_display_name(name)}, {private}" for name, private in columns),
        ],
        "images": [
            [
                {"pixels": o["original"], "caption": f"client {o['client']}"},
                *(
                    build_thumbnail(attacks[name, p, o["client"], o["image"]])
                    for name, p in columns
                ),
            ]
            for o in originals
        ],
        "notes": content["notes"],
    }


def choose_shown_rounds(
    records: Sequence[AuditRecord], attacks: Sequence[AuditRecord]
) -> dict[str, int]:
    """Choose the round of each algorithm whose images are shown: the last, or at the lowest level."""
    matched = collect_matched_rounds(records)
    levels, last = list_common_levels(matched), max(r["round"] for r in attacks)
    names = dict.fromkeys(r["algorithm"] for r in attacks)
    return {name: matched[name][levels[-1]] if levels else last for name in names}


def describe_shown_rounds(records: Sequence[AuditRecord]) -> str:
    """Say when the shown images were attacked: ``after 10 rounds``, or ``at loss 0.5``."""
    levels = list_common_levels(collect_matched_rounds(records))
    if levels:
        return f"at loss {levels[-1]:g}"
    last = max(r["round"] for r in collect_attacks(records))
    return f"after {last} round{'s' * (last != 1)}"


def build_thumbnail(r: AuditRecord) -> dict[str, str]:
    return {"pixels": r["picture"], "caption": f"{r['psnr']:.1f} dB"}


def format_metrics(r: AuditRecord) -> list[str]:
    levels = [f"{r[k]:.2f}" for k in ("psnr_mean", "psnr_max")]
    return levels + [f"{r[k]:.3f}" for k in ("ssim_mean", "ssim_max")]


def select_images(
    records: Sequence[AuditRecord],
) -> tuple[list[AuditRecord], list[tuple[str, str]], Any]:
    """Images of the last round or level, one of each client first; columns; and attacks by key."""
    start, attacks = records[0], collect_attacks(records)
    shown = choose_shown_rounds(records, attacks)
    by_key = {
        (r["algorithm"], r["private"], r["client"], r["image"]): r
        for r in attacks
        if r["round"] == shown[r["algorithm"]]
    }
    originals = {(r["image"], r["client"]): r for r in by_key.values()}
    kinds = [(a, p) for a in start["algorithms"] for p in PRIVATE_KNOWLEDGE]
    columns = [k for k in kinds if any(key[:2] == k for key in by_key)]
    return [originals[k] for k in sorted(originals)][:MAX_IMAGES], columns, by_key
