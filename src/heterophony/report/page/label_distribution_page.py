"""Who holds what as one HTML file: inline SVG, no script, for offline use, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, sqrt
from pathlib import Path
from string import Template

from ...analysis.label_distribution import Holdings
from ...core.files import write as write_file
from .html import digest, part

WIDE = 1100  # of every drawing; the page scales it, a phone scrolls it
TIPS = 20_000  # up to so many fields say their number when pointed at
LOOK = """
.scroll > svg { min-width: 60rem; }
.kept { fill: var(--c0); } .added { fill: var(--c1); } .own { fill: var(--muted); opacity: .7; }
.disc { fill: var(--c0); opacity: .75; }
"""


def write(held: Holdings, path: Path) -> None:
    """The page of this federation, as one file."""
    write_file(path, render(held).encode())


def render(held: Holdings) -> str:
    """The page as text: no request leaves it, and no script may run in it."""
    css = part("page.css") + LOOK
    return Template(part("holdings.html")).substitute(
        policy=f"default-src 'none'; style-src '{digest(css)}'",
        css=css,
        title=escape(held.title),
        summary=escape(summary(held)),
        heat=heat(held),
        bubbles=bubbles(held),
        sizes=sizes(held),
        rule=escape(rule(held)),
        table=table(held),
    )


def summary(held: Holdings) -> str:
    train, classes = held.train, (held.counts > 0).sum(axis=1)
    held_out = "" if held.validation is None else f", {held.validation.sum()} validation"
    return (
        f"{train.sum()} training{held_out} and {held.test.sum()} test examples"
        f" of {len(held.classes)} classes; "
        f"{train.min()} to {train.max()} training examples and {classes.min()} to {classes.max()}"
        " classes per client."
    )


def rule(held: Holdings) -> str:
    if held.balanced is None:
        return "Grey: training examples."
    return (
        "Grey: training examples as they are. Beside them the set that FedReG balances to"
        f" {held.balanced.rule}: blue is kept, orange are augmented copies."
    )


# Drawings -----------------------------------------------------------------------------------


def heat(held: Holdings) -> str:
    """Fields in eight shades."""
    left, wide, high = frame(held)
    most, gap = held.counts.max(initial=1), 1 if wide > 5 else 0
    out = [
        f'<rect class="lane" x="{left}" y="0" width="{WIDE - left}" height="{at(bottom(held))}"/>'
    ]
    for i, j, n, tip in fields(held):
        place = f'x="{at(left + i * wide)}" y="{at(j * high)}"'
        size = f'width="{at(wide - gap)}" height="{at(high - gap)}"'
        out.append(f'<rect class="h{ceil(8 * sqrt(n / most))}" {place} {size}>{tip}</rect>')
    y = bottom(held) + 44
    for level in range(1, 9):
        x = left + 20 + 22 * (level - 1)
        out.append(f'<rect class="h{level}" x="{at(x)}" y="{at(y)}" width="22" height="14"/>')
    out += [text(left + 12, y + 12, "1", "end"), text(left + 204, y + 12, f"{most} examples")]
    return drawing("Training examples per client and class", out + names(held), y + 20)


def bubbles(held: Holdings) -> str:
    """Discs by area, and three that explain it."""
    left, wide, high = frame(held)
    largest = min(22.0, max(10.0, 0.9 * min(wide, high))) / 2
    most, end = int(held.counts.max(initial=1)), bottom(held)
    out = [f'<rect class="lane" x="{left}" y="0" width="{WIDE - left}" height="{at(end)}"/>']
    for i, j, n, tip in fields(held):
        place = f'cx="{at(left + (i + 0.5) * wide)}" cy="{at((j + 0.5) * high)}"'
        out.append(
            f'<circle class="disc" {place} r="{at(largest * sqrt(n / most))}">{tip}</circle>'
        )
    for k, n in enumerate(sorted({ceil(most / 16), ceil(most / 4), most})):
        x, y = left + 12 + 160 * k, end + 54
        out.append(
            f'<circle class="disc" cx="{x}" cy="{at(y)}" r="{at(largest * sqrt(n / most))}"/>'
        )
        out.append(text(x + 18, y + 4, f"{n} example{'s' * (n > 1)}"))
    return drawing("Training examples as areas", out + names(held), end + 76)


def sizes(held: Holdings) -> str:
    """A bar per client; beside it the balanced set, where there is one."""
    left, wide, _ = frame(held)
    after, tall = held.balanced, 220.0
    most = max(int(held.train.max(initial=1)), int(after.train.max(initial=1)) if after else 1)
    out = []
    for value in (0, most // 2, most):
        y = tall + 8 - tall * value / most
        out.append(f'<path class="grid" d="M{left} {at(y)}H{WIDE}"/>')
        out.append(text(left - 8, y + 4, str(value), "end"))
    for i, name in enumerate(held.clients):
        stacks = [[("own", int(held.train[i]), "training examples")]]
        if after:
            kept, added = int(after.kept[i]), int(after.added[i])
            stacks.append([("kept", kept, "kept"), ("added", added, "augmented copies")])
        thick = 0.84 * wide / len(stacks)
        for k, stack in enumerate(stacks):
            y = tall + 8
            for kind, n, what in stack:
                y -= tall * n / most
                place = f'x="{at(left + (i + 0.08) * wide + k * thick)}" y="{at(y)}"'
                size = f'width="{at(thick)}" height="{at(tall * n / most)}"'
                tip = f"<title>{escape(f'client {name}: {n} {what}')}</title>"
                out.append(f'<rect class="{kind}" {place} {size}>{tip}</rect>')
    return drawing("Sizes of the clients", out + columns(held, tall + 8), tall + 48)


def drawing(label: str, content: Sequence[str], height: float) -> str:
    box = f'viewBox="0 0 {WIDE} {at(height)}" role="img" aria-label="{escape(label)}"'
    return f"<svg {box}>{''.join(content)}</svg>"


def frame(held: Holdings) -> tuple[float, float, float]:
    """Where the first column begins, and the size of a field."""
    left = 24.0 + 7 * max(5, *(len(short(c)) for c in held.classes))
    high = max(6.0, min(24.0, 900 / len(held.classes)))
    return left, (WIDE - left) / len(held.clients), high


def bottom(held: Holdings) -> float:
    return frame(held)[2] * len(held.classes)


def fields(held: Holdings) -> Iterator[tuple[int, int, int, str]]:
    """Client, class and number where there is any, and the words to say when pointed at."""
    clients, classes = held.counts.nonzero()
    for i, j in zip(clients.tolist(), classes.tolist(), strict=True):
        n = int(held.counts[i, j])
        said = f"client {held.clients[i]}: {n} of class {held.classes[j]}"
        yield i, j, n, f"<title>{escape(said)}</title>" if len(clients) <= TIPS else ""


def names(held: Holdings) -> list[str]:
    left, _, high = frame(held)
    step = every(high, 13)
    rows = [(j, c) for j, c in enumerate(held.classes) if j % step == 0]
    marks = [text(left - 8, (j + 0.5) * high + 4, short(c), "end") for j, c in rows]
    return marks + columns(held, bottom(held))


def columns(held: Holdings, y: float) -> list[str]:
    left, wide, _ = frame(held)
    step = every(wide, 10 + 7 * max(len(short(c)) for c in held.clients))
    shown = [(i, c) for i, c in enumerate(held.clients) if i % step == 0]
    marks = [text(left + (i + 0.5) * wide, y + 16, short(c), "middle") for i, c in shown]
    return [*marks, text(WIDE, y + 34, "client", "end")]


def every(size: float, room: float) -> int:
    """Every how many-th name has room."""
    return next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if n * size >= room)


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{at(x)}" y="{at(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"


# Table --------------------------------------------------------------------------------------


def table(held: Holdings) -> str:
    """A row per client: sizes, classes, and its largest class."""
    after, held_out = held.balanced, held.validation
    sizes = ["training", *(["validation"] if held_out is not None else []), "test"]
    titles = ["client", *sizes, "classes", "largest class", "its share"]
    titles += ["balanced", "of it augmented"] if after else []
    head = "".join(f'<th scope="col">{t}</th>' for t in titles)
    rows = []
    for i, (name, counts) in enumerate(zip(held.clients, held.counts, strict=True)):
        largest, n = int(counts.argmax()), int(counts.sum())
        share = f"{100 * counts[largest] / n:.0f} %" if n else "–"
        cells = [n, *([held_out[i]] if held_out is not None else []), held.test[i]]
        cells += [(counts > 0).sum(), held.classes[largest], share]
        cells += [after.train[i], after.added[i]] if after else []
        row = "".join(f"<td>{escape(str(c))}</td>" for c in cells)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{row}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
