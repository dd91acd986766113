"""Summarise an audit: the numbers of ``audit.json`` and its tables. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from ..algorithms import get_display_name
from ..papers.table import PublishedTable
from ..results.table import Column, Columns, ResultTable, Rows

# quick: minutes on small data; medium: the published table, reduced; paper: the table in full
AuditPreset = Literal["quick", "medium", "paper"]
Record = dict[str, Any]


def find_rounds_at_losses(losses: Mapping[int, float], levels: Iterable[float]) -> dict[float, int]:
    """Return the first round whose loss reaches each level; leave out levels that are never reached."""
    found = {
        level: next((t for t in sorted(losses) if losses[t] <= level), None) for level in levels
    }
    return {level: t for level, t in found.items() if t is not None}


def collect_losses(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """Collect the losses in an audit's records by algorithm and round; leave out algorithms that send no parameters."""
    out: dict[str, dict[int, float]] = {}
    for r in records:
        if lists_sent_parameters(r):
            out.setdefault(r["algorithm"], {})
        elif r["event"] == "loss":
            out.setdefault(r["algorithm"], {})[r["round"]] = r["loss"]
    return out


def lists_sent_parameters(record: Record) -> bool:
    """Return True if a record lists parameters that an algorithm sends."""
    return bool(record["event"] == "visible" and record["names"])


def collect_matched_rounds(records: Iterable[Record]) -> dict[str, dict[float, int]]:
    """Collect the rounds in which each algorithm of an audit reaches the loss levels, if the audit has any."""
    found = list(records)
    levels = found[0]["victims"].get("losses", ())
    if not levels:
        return {}
    return {
        name: find_rounds_at_losses(losses, levels)
        for name, losses in collect_losses(found).items()
    }


def list_common_levels(matched: Mapping[str, Mapping[float, int]]) -> list[float]:
    """List the loss levels that all algorithms reach, highest first; algorithms are compared only at these."""
    reached = [set(rounds) for rounds in matched.values()]
    return sorted(set.intersection(*reached), reverse=True) if reached else []


# personal parameters that an attacker assumes: a guess, made in the same way for every algorithm, or the true ones
GUESSED_FRESH, GUESSED_INITIAL, PRIVATE_KNOWN = "fresh", "initial", "known"
PRIVATE_KNOWLEDGE = (GUESSED_FRESH, GUESSED_INITIAL, PRIVATE_KNOWN)
IMAGE_KEYS = ("original", "picture")  # left out of ``audit.json``


def summarise_audit(records: Sequence[Record], table: PublishedTable) -> dict[str, Any]:
    """Build the content of ``audit.json``, which does not depend on the order of the records."""
    asked = {k: v for k, v in records[0].items() if k != "event"}
    found, matched = collect_attacks(records), collect_matched_rounds(records)
    levels = list_common_levels(matched)
    rows = [
        summarise_row(name, private, mine, {v: matched[name][v] for v in levels})
        for name in asked["algorithms"]
        for private in PRIVATE_KNOWLEDGE
        if (mine := [r for r in found if (r["algorithm"], r["private"]) == (name, private)])
    ]
    return {
        "asked": asked,
        **({"matched": summarise_matching(records, matched)} if matched else {}),
        "visible": collect_sent_parameters(records, asked["algorithms"]),
        "references": summarise_references(found),
        "rows": rows,
        "orderings": check_orderings(rows, table),
        "notes": collect_notes(records, found, asked),
        "attacks": [{k: v for k, v in r.items() if k not in ("event", *IMAGE_KEYS)} for r in found],
    }


def collect_attacks(records: Iterable[Record]) -> list[Record]:
    """Collect an audit's records of attacks, each once, in a fixed order."""
    by_key = {
        (r["algorithm"], r["private"], r["round"], r["client"], r["image"]): r
        for r in records
        if r["event"] == "attack"
    }
    return [by_key[k] for k in sorted(by_key)]


def summarise_row(
    name: str, private: str, attacks: Sequence[Record], matched: Mapping[float, int]
) -> Record:
    """Summarise the attacks on an algorithm by one attacker, as a row of ``audit.json``.

    If algorithms are compared at loss levels, a round that reaches two levels counts twice in the means.
    """
    by_round = {
        t: [r for r in attacks if r["round"] == t] for t in sorted({r["round"] for r in attacks})
    }
    counted = [r for t in matched.values() for r in by_round[t]] or attacks
    return {
        "algorithm": name,
        "private": private,
        "attacks": len(attacks),
        "failed": sum(not r["finite"] for r in attacks),
        **summarise_quality(counted),
        "rounds": {str(t): summarise_quality(own) for t, own in by_round.items()},
        **(
            {"losses": {f"{v:g}": summarise_quality(by_round[t]) for v, t in matched.items()}}
            if matched
            else {}
        ),
    }


def summarise_matching(
    records: Sequence[Record], matched: Mapping[str, Mapping[float, int]]
) -> dict[str, dict[str, Record]]:
    """Return the round in which each algorithm reached each loss level, and its loss in that round."""
    losses = collect_losses(records)
    return {
        name: {f"{v:g}": {"round": t, "loss": losses[name][t]} for v, t in rounds.items()}
        for name, rounds in matched.items()
    }


def summarise_quality(attacks: Sequence[Record]) -> dict[str, float]:
    """Return mean and maximum of PSNR and SSIM over several attacks."""
    return {
        "psnr_mean": fmean(r["psnr"] for r in attacks),
        "psnr_max": max(r["psnr"] for r in attacks),
        "ssim_mean": fmean(r["ssim"] for r in attacks),
        "ssim_max": max(r["ssim"] for r in attacks),
    }


@dataclass(frozen=True)
class AuditPart:
    """A round or loss level of an audit, which has a column in the table."""

    kind: str  # "rounds" or "losses": where a row has its numbers
    key: str

    @property
    def title(self) -> str:
        when = f"after round {self.key}" if self.kind == "rounds" else f"at loss {self.key}"
        return f"PSNR {when}"

    def find_psnr(self, row: Record) -> float | None:
        """Return a row's mean PSNR in this round or at this level; None if nothing was attacked there."""
        found = row[self.kind].get(self.key)
        return found["psnr_mean"] if found else None


def list_audit_parts(content: Record) -> list[AuditPart]:
    """List the rounds or loss levels of an audit; an empty list if there is only one."""
    if "matched" in content:
        matched = {
            name: {float(v): at["round"] for v, at in rounds.items()}
            for name, rounds in content["matched"].items()
        }
        levels = list_common_levels(matched)
        parts = [AuditPart("losses", f"{v:g}") for v in levels]
    else:
        parts = [AuditPart("rounds", str(t)) for t in content["asked"]["victims"]["rounds"]]
    return parts if len(parts) > 1 else []


QUALITY_COLUMNS = {
    "psnr_mean": Column("PSNR mean"),
    "psnr_max": Column("PSNR max"),
    "ssim_mean": Column("SSIM mean", form=".3f"),
    "ssim_max": Column("SSIM max", form=".3f"),
}


def build_audit_table(content: Record) -> ResultTable:
    """Build the audit's table of recovered images; the last rows are reference images, for comparison."""
    how, parts = content["asked"]["how"], list_audit_parts(content)
    rows: Rows = [
        [
            *(get_display_name(r["algorithm"]), r["private"], r["attacks"]),
            *(r[key] for key in QUALITY_COLUMNS),
            *(part.find_psnr(r) for part in parts),
        ]
        for r in content["rows"]
    ]
    rows += [
        [name, "", "", *(r[key] for key in QUALITY_COLUMNS), *[""] * len(parts)]
        for name, r in content["references"].items()
    ]
    columns: Columns = ["algorithm", "personal parameters", Column("images", form="d")]
    return ResultTable.build(
        [*columns, *QUALITY_COLUMNS.values(), *(Column(part.title) for part in parts)],
        rows,
        f"Images recovered ({how['attack']}, {how['iterations']} iterations); higher leaks more",
        content["notes"],
    )


def build_ordering_table(content: Record) -> ResultTable | None:
    """Build the audit's table of orderings in the paper and in these runs; None if there are no orderings."""
    found = content["orderings"]
    if not found:
        return None
    rows: Rows = [
        [
            f"{o['above']} > {o['below']}",
            "mean" if o["measure"] == "psnr_mean" else "max",
            o["private"],
            " > ".join(f"{v:.2f}" for v in o["printed"]),
            ", ".join(f"{v:.2f}" for v in o["here"]),
            "yes" if o["holds"] else "no",
        ]
        for o in found
    ]
    distinct = {(o["above"], o["below"], o["measure"]) for o in found}
    columns: Columns = [
        "ordering",
        "PSNR",
        "personal parameters",
        *map(Column, ("printed", "here", "holds")),
    ]
    return ResultTable.build(
        columns,
        rows,
        f"FedDecomp, Table 7: who leaks more, {len(distinct)} orderings under three attackers"
        " (PSNR; read the order, not the level)",
    )


def summarise_references(found: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Summarise how similar the reference images, such as noise, are to the attacked originals."""
    once = {(r["client"], r["image"]): r["references"] for r in found}.values()
    names = list(next(iter(once), {}))
    pairs = {
        name: [dict(zip(("psnr", "ssim"), r[name], strict=True)) for r in once] for name in names
    }
    return {name: summarise_quality(qualities) for name, qualities in pairs.items()}


def collect_sent_parameters(
    records: Iterable[Record], algorithms: Sequence[str]
) -> dict[str, dict[str, list[str]]]:
    """Collect the names of the parameters that clients send, by algorithm and round of the audit."""
    visible = [r for r in records if r["event"] == "visible"]
    return {
        name: {str(r["round"]): r["names"] for r in visible if r["algorithm"] == name}
        for name in algorithms
    }


def check_orderings(rows: Sequence[Record], table: PublishedTable) -> list[Record]:
    """Check the paper's orderings, in which one algorithm leaks more than another, against an audit's rows."""
    names = {row: settings["algorithm"]["name"] for row, settings in table.rows.items()}
    out = []
    for private in PRIVATE_KNOWLEDGE:
        ours = {r["algorithm"]: r for r in rows if r["private"] == private}
        for o in table.orderings:
            above, below = ours.get(names[o.above]), ours.get(names[o.below])
            if above is None or below is None:
                continue
            printed = table.printed[o.measure]
            out.append(
                {
                    "private": private,
                    "measure": o.measure,
                    "above": names[o.above],
                    "below": names[o.below],
                    "printed": [printed[o.above][0], printed[o.below][0]],
                    "here": [above[o.measure], below[o.measure]],
                    "holds": above[o.measure] > below[o.measure],
                }
            )
    return out


def collect_notes(records: Sequence[Record], found: Sequence[Record], asked: Record) -> list[str]:
    """Collect the notes below the audit's table."""
    out = []
    names = collect_sent_parameters(records, asked["algorithms"])
    silent = [n for n, rounds in names.items() if rounds and not any(rounds.values())]
    if silent:
        out.append(f"{', '.join(silent)}: sends no parameters, so there is no gradient to invert")
    if asked["how"]["labels"] == "inferred":
        given = sorted({r["algorithm"] for r in found if r["labels"] == "known"})
        if given:
            reason = "the bias of the last layer is not sent, so labels were given, not inferred"
            out.append(f"{', '.join(given)}: {reason}")
        inferred = [r for r in found if r["labels"] == "inferred"]
        if inferred:
            right = sum(r["right"] for r in inferred)
            out.append(f"labels inferred: {right} of {len(inferred)} right")
    if asked["how"]["labels"] == "joint":
        right = sum(r["right"] for r in found)
        out.append(f"labels optimised with the images: {right} of {len(found)} right")
    if asked["how"]["steps"] > 1:
        out.append(
            f"the victim made {asked['how']['steps']} steps on the same images; its update, divided"
            " by learning rate and steps, was matched as if it were one gradient"
        )
    out += explain_matching(records)
    failed = sum(not r["finite"] for r in found)
    if failed:
        out.append(f"{failed} attacks reached infinity or NaN; their last finite image is used")
    return out


def explain_matching(records: Sequence[Record]) -> list[str]:
    """Return notes on the loss levels: the rounds that reach each level, and the levels that are left out."""
    matched, losses = collect_matched_rounds(records), collect_losses(records)
    if not matched:
        return []
    asked, common = records[0]["victims"]["losses"], list_common_levels(matched)
    out = []
    for level in sorted(asked, reverse=True):
        late = [name for name, rounds in matched.items() if level not in rounds]
        if late:
            out.append(f"loss {level:g} is left out: {', '.join(late)} did not reach it")
    for level in common:
        places = [
            f"{name} round {rounds[level]} ({losses[name][rounds[level]]:.2f})"
            for name, rounds in matched.items()
        ]
        out.append(f"at loss {level:g}: {', '.join(places)}")
    return out
