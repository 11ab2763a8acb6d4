"""Line differences between two contents, as hunks. Pure."""

from __future__ import annotations

from typing import Any

CONTEXT_LINES = 3
# difflib is quadratic at worst: beyond this many lines the middle is shown as replaced whole.
EXACT_LINES = 20_000


def hunks(before: bytes, after: bytes) -> list[dict[str, Any]] | None:
    """`[{id, old_start, old_lines, new_start, new_lines, lines, review}]`, lines marked ` `, `-`, `+`; None for binary content."""
    if b"\0" in before[:8192] or b"\0" in after[:8192]:
        return None
    old, new = _lines(before), _lines(after)
    found = []
    for n, group in enumerate(_groups(old, new)):
        lines: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [" " + line for line in old[i1:i2]]
                continue
            lines += ["-" + line for line in old[i1:i2]]
            lines += ["+" + line for line in new[j1:j2]]
        first, last = group[0], group[-1]
        old_lines, new_lines = last[2] - first[1], last[4] - first[3]
        found.append(
            {
                "id": n,
                "old_start": first[1] + (1 if old_lines else 0),
                "old_lines": old_lines,
                "new_start": first[3] + (1 if new_lines else 0),
                "new_lines": new_lines,
                "lines": lines,
                "review": "pending",
            }
        )
    return found


def count(before: bytes | None, after: bytes | None) -> tuple[int, int]:
    """(additions, deletions) in lines; (0, 0) for binary content."""
    found = hunks(before or b"", after or b"") or []
    lines = [line[0] for hunk in found for line in hunk["lines"]]
    return lines.count("+"), lines.count("-")


def patch(path: str, status: str, found: list[dict[str, Any]] | None) -> str:
    """One file's unified diff, as `git apply` and `patch` read it."""
    old, new = ("/dev/null" if status == "added" else f"a/{path}"), ("/dev/null" if status == "deleted" else f"b/{path}")
    if found is None:
        return f"Binary files {old} and {new} differ\n"
    out = [f"--- {old}\n", f"+++ {new}\n"]
    for hunk in found:
        out.append(f"@@ -{hunk['old_start']},{hunk['old_lines']} +{hunk['new_start']},{hunk['new_lines']} @@\n")
        for line in hunk["lines"]:
            out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


def _lines(content: bytes) -> list[str]:
    # Only LF ends a line here, as in git: a lone CR or a Unicode line separator is part of its line.
    text = content.decode("utf-8", "replace")
    pieces = text.split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def _groups(old: list[str], new: list[str]) -> list[list[tuple[str, int, int, int, int]]]:
    from difflib import SequenceMatcher

    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if len(old) + len(new) - 2 * (start + end) <= EXACT_LINES:
        return [list(group) for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)]
    a, b = max(start - CONTEXT_LINES, 0), min(end, CONTEXT_LINES)
    whole = [("equal", a, start, a, start), ("replace", start, len(old) - end, start, len(new) - end)]
    return [[*whole, ("equal", len(old) - end, len(old) - end + b, len(new) - end, len(new) - end + b)]]
