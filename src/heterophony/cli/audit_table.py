"""Print the result of an audit: its table, and the orderings of the published one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..algorithms import get_display_name
from ..privacy.summary import list_parts
from . import terminal

YES_NO = {True: "yes", False: "no"}


def show_audit(content: dict[str, Any], parent: Path) -> None:
    """Print what was recovered, the references for no leak, and the orderings of the paper."""
    how = content["asked"]["how"]
    parts = list_parts(content)
    titles = ["", "personal parameters", "images", "PSNR mean", "max", "SSIM mean", "max"]
    titles += [part.title for part in parts]
    rows = [
        [
            get_display_name(r["algorithm"]),
            r["private"],
            r["attacks"],
            *format_metrics(r),
            *(part.format_psnr(r) for part in parts),
        ]
        for r in content["rows"]
    ]
    empty = [""] * len(parts)
    rows += [
        [name, "", "", *format_metrics(r), *empty] for name, r in content["references"].items()
    ]
    title = f"Images recovered ({how['attack']}, {how['iterations']} iterations); higher leaks more"
    terminal.print_table(title, titles, rows, text=2)
    if content["orderings"]:
        table = [
            [
                f"{o['above']} > {o['below']}",
                "mean" if o["measure"] == "psnr_mean" else "max",
                o["private"],
                " > ".join(f"{v:.2f}" for v in o["printed"]),
                ", ".join(f"{v:.2f}" for v in o["here"]),
                YES_NO[o["holds"]],
            ]
            for o in content["orderings"]
        ]
        orderings = {(o["above"], o["below"], o["measure"]) for o in content["orderings"]}
        terminal.print_table(
            f"FedDecomp, Table 7: who leaks more, {len(orderings)} orderings under three attackers"
            " (PSNR; read the order, not the level)",
            ["", "PSNR", "personal parameters", "printed", "here", "holds"],
            table,
            text=3,
        )
    for note in content["notes"]:
        terminal.print_note(note)
    terminal.print_note(f"{parent}/audit.json, audit.png; a page: heterophony report {parent}")


def format_metrics(r: dict[str, float]) -> list[str]:
    return [
        f"{r['psnr_mean']:.2f}",
        f"{r['psnr_max']:.2f}",
        f"{r['ssim_mean']:.3f}",
        f"{r['ssim_max']:.3f}",
    ]
