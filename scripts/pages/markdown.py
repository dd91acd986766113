"""Adapt GitHub's Markdown to that of the site: lists, tables, code, formulas and links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape

from latex2mathml.converter import convert

ITEM = re.compile(r"^( {0,3})([-*]|\d+\.)( +)\S")
FENCE = re.compile(r"^ *(```+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FORMULA = re.compile(  # or inline code, which is left alone
    r"\$\$(.+?)\$\$|(?<![\w$\\])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])|`[^`\n]*`", re.S
)
NO_BREAK_PLUS_MINUS = "\u00a0±\u00a0"  # a number and its interval stay on one line
COMMANDS = ("heterophony", "make", "pip", "python", "ray", "git", "export", "tensorboard", ".", "#")


def adapt_page(text: str, mend_link: Callable[[str], str], formulas: bool) -> str:
    """Adapt a page; ``mend_link`` returns a link's target on the site."""
    out = []
    for is_code, part in split_at_fences(text):
        if not is_code:
            part = LINK.sub(lambda m: f"]({mend_link(m[1])})", part)
            part = part.replace(" ± ", NO_BREAK_PLUS_MINUS)
            part = FORMULA.sub(write_formula, part) if formulas else part
        out.append(part)
    lines = fence_indented_code(adapt_lists("".join(out).splitlines()))
    return "\n".join(lines).rstrip("\n") + "\n"


def split_at_fences(text: str) -> Iterator[tuple[bool, str]]:
    """Split a page into text and fenced code."""
    held: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        found = FENCE.match(line)
        if found and not fence:
            yield False, "".join(held)
            held, fence = [line], found[1]
        elif found and line.strip() == fence:
            yield True, "".join([*held, line])
            held, fence = [], ""
        else:
            held.append(line)
    yield bool(fence), "".join(held)


def write_formula(found: re.Match[str]) -> str:
    """Write a formula as MathML, which browsers draw without scripts and without fonts from the network."""
    if found[0].startswith("`"):
        return found[0]
    block = found[1] is not None
    latex = " ".join((found[1] or found[2]).split())
    math = convert(latex, display="block" if block else "inline")
    # Markdown must not see the signs that it reads as emphasis
    math = math.replace("*", "&#42;").replace("_", "&#95;")
    source = escape(latex, quote=True).replace("_", "&#95;").replace("*", "&#42;")
    math = math.replace("<math ", f'<math alttext="{source}" ', 1)
    return f'\n\n<div class="formula">{math}</div>\n\n' if block else f"<span>{math}</span>"


def adapt_lists(lines: list[str]) -> Iterator[str]:
    """Put a blank line before lists and tables, and indent the content of an item by four."""
    before, content, fence, blank = "", 0, "", True
    for line in lines:
        found = FENCE.match(line)
        if found and (not fence or line.strip() == fence):
            fence = "" if fence else found[1]
            indent = len(line) - len(line.lstrip())
            content = content if indent >= content else 0
            yield shift(line, content)
            before, blank = line, False
            continue
        if fence:
            yield shift(line, content)
            continue
        item = ITEM.match(line)
        if line.strip() and not item and not line.startswith(" ") and blank:
            content = 0  # the list has ended
        starts_list = item and not content and before.strip() and not blank
        row = line.lstrip().startswith("|")
        if row:  # code needs no backslash before a bar here
            line = re.sub(r"`[^`]*`", lambda m: m[0].replace("\\|", "|"), line)
        starts_table = row and before.strip() and not before.lstrip().startswith("|")
        if starts_list or (starts_table and not blank):
            yield ""
        if item and (not content or len(item[1]) < content):
            content = content or len(item[1]) + len(item[2]) + len(item[3])
        yield shift(line, content) if line.startswith(" ") else line
        before, blank = line, not line.strip()


def shift(line: str, content: int) -> str:
    """Indent a line of an item by four in place of the item's own width."""
    return f"{' ' * (4 - content)}{line}" if line.strip() and 0 < content < 4 else line


def fence_indented_code(lines: Iterator[str]) -> Iterator[str]:
    """Turn code that is indented by four into fenced code, which is coloured and can be copied."""
    held: list[str] = []
    fence, in_list, blank = False, False, True
    for line in [*lines, ""]:
        if FENCE.match(line):
            fence = not fence
        is_code = not fence and not in_list and line.startswith("    ") and bool(line.strip())
        if is_code and (held or blank):
            held.append(line[4:])
        elif held and not line.strip():
            held.append("")
        else:
            yield from close_code(held)
            held = []
            yield line
        if not fence and line.strip():
            item = ITEM.match(line) is not None
            in_list = item or (in_list and line.startswith(" "))
        blank = not line.strip() or line.startswith("#") or bool(held)
    yield from close_code(held)


def close_code(held: list[str]) -> Iterator[str]:
    """Yield the held lines as one block of code, and the blank lines after it."""
    while held and not held[-1]:
        held = held[:-1]
    if held:
        shell = any(line.startswith(COMMANDS) for line in held)
        yield from ["", f"```{'sh' if shell else 'text'}", *held, "```", ""]
