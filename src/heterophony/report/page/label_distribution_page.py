"""Who holds what as one HTML file: inline SVG, no script, for offline use, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, sqrt
from pathlib import Path
from string import Template

from ...analysis.label_distribution import LabelDistribution
from ...core.files import write_atomically as write_file
from .html import compute_csp_hash, read_asset

DRAWING_WIDTH = 1100  # of every drawing; the page scales it, a phone scrolls it
MAX_TOOLTIPS = 20_000  # up to so many fields say their number when pointed at
EXTRA_CSS = """
.scroll > svg { min-width: 60rem; }
.kept { fill: var(--c0); } .added { fill: var(--c1); } .own { fill: var(--muted); opacity: .7; }
.disc { fill: var(--c0); opacity: .75; }
"""


def write_label_page(held: LabelDistribution, path: Path) -> None:
    """The page of this federation, as one file."""
    write_file(path, render_label_page(held).encode())


def render_label_page(held: LabelDistribution) -> str:
    """The page as text: no request leaves it, and no script may run in it."""
    css = read_asset("page.css") + EXTRA_CSS
    return Template(read_asset("label_distribution.html")).substitute(
        policy=f"default-src 'none'; style-src '{compute_csp_hash(css)}'",
        css=css,
        title=escape(held.title),
        summary=escape(describe_sizes(held)),
        heat=draw_heatmap(held),
        bubbles=draw_bubbles(held),
        sizes=draw_client_sizes(held),
        rule=escape(describe_colors(held)),
        table=build_client_table(held),
    )


def describe_sizes(held: LabelDistribution) -> str:
    train, classes = held.train_sizes, (held.label_counts > 0).sum(axis=1)
    held_out = (
        "" if held.validation_sizes is None else f", {held.validation_sizes.sum()} validation"
    )
    return (
        f"{train.sum()} training{held_out} and {held.test_sizes.sum()} test examples"
        f" of {len(held.classes)} classes; "
        f"{train.min()} to {train.max()} training examples and {classes.min()} to {classes.max()}"
        " classes per client."
    )


def describe_colors(held: LabelDistribution) -> str:
    if held.balanced is None:
        return "Grey: training examples."
    return (
        "Grey: training examples as they are. Beside them the set that FedReG balances to"
        f" {held.balanced.target_rule}: blue is kept, orange are augmented copies."
    )


# Drawings -----------------------------------------------------------------------------------


def draw_heatmap(held: LabelDistribution) -> str:
    """Fields in eight shades."""
    left, wide, high = compute_layout(held)
    most, gap = held.label_counts.max(initial=1), 1 if wide > 5 else 0
    out = [
        f'<rect class="lane" x="{left}" y="0" width="{DRAWING_WIDTH - left}" height="{format_coordinate(compute_plot_height(held))}"/>'
    ]
    for i, j, n, tip in iterate_cells(held):
        place = f'x="{format_coordinate(left + i * wide)}" y="{format_coordinate(j * high)}"'
        size = f'width="{format_coordinate(wide - gap)}" height="{format_coordinate(high - gap)}"'
        out.append(f'<rect class="h{ceil(8 * sqrt(n / most))}" {place} {size}>{tip}</rect>')
    y = compute_plot_height(held) + 44
    for level in range(1, 9):
        x = left + 20 + 22 * (level - 1)
        out.append(
            f'<rect class="h{level}" x="{format_coordinate(x)}" y="{format_coordinate(y)}" width="22" height="14"/>'
        )
    out += [
        build_text_element(left + 12, y + 12, "1", "end"),
        build_text_element(left + 204, y + 12, f"{most} examples"),
    ]
    return wrap_svg("Training examples per client and class", out + label_axes(held), y + 20)


def draw_bubbles(held: LabelDistribution) -> str:
    """Discs by area, and three that explain it."""
    left, wide, high = compute_layout(held)
    largest = min(22.0, max(10.0, 0.9 * min(wide, high))) / 2
    most, end = int(held.label_counts.max(initial=1)), compute_plot_height(held)
    out = [
        f'<rect class="lane" x="{left}" y="0" width="{DRAWING_WIDTH - left}" height="{format_coordinate(end)}"/>'
    ]
    for i, j, n, tip in iterate_cells(held):
        place = f'cx="{format_coordinate(left + (i + 0.5) * wide)}" cy="{format_coordinate((j + 0.5) * high)}"'
        out.append(
            f'<circle class="disc" {place} r="{format_coordinate(largest * sqrt(n / most))}">{tip}</circle>'
        )
    for k, n in enumerate(sorted({ceil(most / 16), ceil(most / 4), most})):
        x, y = left + 12 + 160 * k, end + 54
        out.append(
            f'<circle class="disc" cx="{x}" cy="{format_coordinate(y)}" r="{format_coordinate(largest * sqrt(n / most))}"/>'
        )
        out.append(build_text_element(x + 18, y + 4, f"{n} example{'s' * (n > 1)}"))
    return wrap_svg("Training examples as areas", out + label_axes(held), end + 76)


def draw_client_sizes(held: LabelDistribution) -> str:
    """A bar per client; beside it the balanced set, where there is one."""
    left, wide, _ = compute_layout(held)
    after, tall = held.balanced, 220.0
    most = max(
        int(held.train_sizes.max(initial=1)), int(after.train_sizes.max(initial=1)) if after else 1
    )
    out = []
    for value in (0, most // 2, most):
        y = tall + 8 - tall * value / most
        out.append(f'<path class="grid" d="M{left} {format_coordinate(y)}H{DRAWING_WIDTH}"/>')
        out.append(build_text_element(left - 8, y + 4, str(value), "end"))
    for i, name in enumerate(held.clients):
        stacks = [[("own", int(held.train_sizes[i]), "training examples")]]
        if after:
            kept, added = int(after.num_kept[i]), int(after.num_copies[i])
            stacks.append([("kept", kept, "kept"), ("added", added, "augmented copies")])
        thick = 0.84 * wide / len(stacks)
        for k, stack in enumerate(stacks):
            y = tall + 8
            for kind, n, what in stack:
                y -= tall * n / most
                place = f'x="{format_coordinate(left + (i + 0.08) * wide + k * thick)}" y="{format_coordinate(y)}"'
                size = f'width="{format_coordinate(thick)}" height="{format_coordinate(tall * n / most)}"'
                tip = f"<title>{escape(f'client {name}: {n} {what}')}</title>"
                out.append(f'<rect class="{kind}" {place} {size}>{tip}</rect>')
    return wrap_svg("Sizes of the clients", out + label_clients(held, tall + 8), tall + 48)


def wrap_svg(label: str, content: Sequence[str], height: float) -> str:
    box = f'viewBox="0 0 {DRAWING_WIDTH} {format_coordinate(height)}" role="img" aria-label="{escape(label)}"'
    return f"<svg {box}>{''.join(content)}</svg>"


def compute_layout(held: LabelDistribution) -> tuple[float, float, float]:
    """Where the first column begins, and the size of a field."""
    left = 24.0 + 7 * max(5, *(len(shorten_name(c)) for c in held.classes))
    high = max(6.0, min(24.0, 900 / len(held.classes)))
    return left, (DRAWING_WIDTH - left) / len(held.clients), high


def compute_plot_height(held: LabelDistribution) -> float:
    return compute_layout(held)[2] * len(held.classes)


def iterate_cells(held: LabelDistribution) -> Iterator[tuple[int, int, int, str]]:
    """Client, class and number where there is any, and the words to say when pointed at."""
    clients, classes = held.label_counts.nonzero()
    for i, j in zip(clients.tolist(), classes.tolist(), strict=True):
        n = int(held.label_counts[i, j])
        said = f"client {held.clients[i]}: {n} of class {held.classes[j]}"
        yield i, j, n, f"<title>{escape(said)}</title>" if len(clients) <= MAX_TOOLTIPS else ""


def label_axes(held: LabelDistribution) -> list[str]:
    left, _, high = compute_layout(held)
    step = compute_label_step(high, 13)
    rows = [(j, c) for j, c in enumerate(held.classes) if j % step == 0]
    marks = [
        build_text_element(left - 8, (j + 0.5) * high + 4, shorten_name(c), "end") for j, c in rows
    ]
    return marks + label_clients(held, compute_plot_height(held))


def label_clients(held: LabelDistribution, y: float) -> list[str]:
    left, wide, _ = compute_layout(held)
    step = compute_label_step(wide, 10 + 7 * max(len(shorten_name(c)) for c in held.clients))
    shown = [(i, c) for i, c in enumerate(held.clients) if i % step == 0]
    marks = [
        build_text_element(left + (i + 0.5) * wide, y + 16, shorten_name(c), "middle")
        for i, c in shown
    ]
    return [*marks, build_text_element(DRAWING_WIDTH, y + 34, "client", "end")]


def compute_label_step(size: float, room: float) -> int:
    """Every how many-th name has room."""
    return next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if n * size >= room)


def build_text_element(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{format_coordinate(x)}" y="{format_coordinate(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def format_coordinate(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def shorten_name(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"


# Table --------------------------------------------------------------------------------------


def build_client_table(held: LabelDistribution) -> str:
    """A row per client: sizes, classes, and its largest class."""
    after, held_out = held.balanced, held.validation_sizes
    sizes = ["training", *(["validation"] if held_out is not None else []), "test"]
    titles = ["client", *sizes, "classes", "largest class", "its share"]
    titles += ["balanced", "of it augmented"] if after else []
    head = "".join(f'<th scope="col">{t}</th>' for t in titles)
    rows = []
    for i, (name, counts) in enumerate(zip(held.clients, held.label_counts, strict=True)):
        largest, n = int(counts.argmax()), int(counts.sum())
        share = f"{100 * counts[largest] / n:.0f} %" if n else "–"
        cells = [n, *([held_out[i]] if held_out is not None else []), held.test_sizes[i]]
        cells += [(counts > 0).sum(), held.classes[largest], share]
        cells += [after.train_sizes[i], after.num_copies[i]] if after else []
        row = "".join(f"<td>{escape(str(c))}</td>" for c in cells)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{row}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
