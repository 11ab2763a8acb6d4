"""Wildcards: reading a pattern into tokens, matching a text, and whether two patterns could name the same thing.

Matching walks a set of positions, so that a pattern with many stars costs time in proportion to its length and never more.
"""

from __future__ import annotations

import unicodedata
from typing import Literal

Wild = Literal["?", "*", "**", "**/"]
"""One character, text inside one name, any text, any folders (also none)."""


class Lit(str):
    """Literal text inside a pattern."""

    __slots__ = ()


Token = Lit | Wild


def nfc(text: str) -> str:
    """One form for accents: what looks the same is judged the same."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def path_tokens(pattern: str) -> list[Token]:
    """`*` and `?` inside one name, `**` across `/`, `**/` also nothing, a backslash makes the next character literal."""
    found: list[Token] = []
    pattern, at = nfc(pattern), 0
    while at < len(pattern):
        starts = not found or (type(found[-1]) is Lit and found[-1].endswith("/"))
        if starts and pattern.startswith("**/", at):
            found.append("**/")
            at += 3
        elif pattern.startswith("**", at):
            found.append("**")
            at += 2
        else:
            at = _one(pattern, at, found, "*")
    return found


def text_tokens(pattern: str) -> list[Token]:
    """`*` is any text including blanks and `/`, `?` any one character, a backslash makes the next character literal."""
    found: list[Token] = []
    pattern, at = nfc(pattern), 0
    while at < len(pattern):
        at = _one(pattern, at, found, "**")
    return found


def _one(pattern: str, at: int, found: list[Token], star: Wild) -> int:
    char = pattern[at]
    if char == "*":
        found.append(star)
    elif char == "?":
        found.append("?")
    else:
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            char = pattern[at]
        if found and type(found[-1]) is Lit:
            found[-1] = Lit(found[-1] + char)
        else:
            found.append(Lit(char))
    return at + 1


def literal_length(tokens: list[Token]) -> int:
    """How many characters of a pattern are literal: the measure of how special a rule is."""
    return sum(len(token) for token in tokens if type(token) is Lit)


def fits(tokens: list[Token], text: str, *, slash: bool) -> bool:
    """Whether the whole of `text` fits. With `slash`, `*` and `?` stop at `/`."""
    text = nfc(text)
    size, here = len(text), {0}
    for token in tokens:
        if not here:
            return False
        if type(token) is Lit:
            here = {at + len(token) for at in here if text.startswith(token, at)}
        elif token == "?":
            here = {at + 1 for at in here if at < size and not (slash and text[at] == "/")}
        elif token == "**/":
            here |= {at + 1 for at in range(min(here), size) if text[at] == "/"}
        elif token == "**" or not slash:
            here = set(range(min(here), size + 1))
        else:
            here = _inside_name(text, here)
    return size in here


def _inside_name(text: str, here: set[int]) -> set[int]:
    reached: set[int] = set()
    for at in sorted(here):
        while at not in reached:
            reached.add(at)
            if at < len(text) and text[at] != "/":
                at += 1
    return reached


def escaped(text: str) -> str:
    """`text` as a pattern that fits only itself."""
    return "".join("\\" + char if char in "*?\\" else char for char in text)


def shell_tokens(word: str) -> list[Token]:
    """A word that the shell will expand to file names; a bracket counts as any one character."""
    found: list[Token] = []
    at = 0
    word = nfc(word)
    while at < len(word):
        close = word.find("]", at + 2) if word[at] == "[" else -1
        if close > 0:
            found.append("?")
            at = close + 1
        else:
            at = _one(word, at, found, "*")
    return found


def meet(shell: list[Token], rule: list[Token]) -> bool:
    """Whether a name exists that both fit. `shell` obeys the shell's rule that a wildcard skips names that begin with a dot."""
    left, right = _chars(shell), _chars(rule)
    todo, seen = [(0, 0, True)], {(0, 0, True)}  # the third: a name begins here
    while todo:
        i, j, edge = todo.pop()
        if i == len(left) and j == len(right):
            return True
        for step in _steps(left[i] if i < len(left) else None, right[j] if j < len(right) else None, edge):
            state = (i + step[0], j + step[1], step[2])
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return False


_Item = tuple[bool, str]
"""(False, character) or (True, wildcard)."""
_STARS = frozenset({"*", "**", "**/"})


def _chars(tokens: list[Token]) -> list[_Item]:
    out: list[_Item] = []
    for token in tokens:
        if type(token) is Lit:
            out.extend((False, char) for char in token)
        else:
            out.append((True, token))
    return out


def _steps(a: _Item | None, b: _Item | None, edge: bool) -> list[tuple[int, int, bool]]:
    """How far both sides may move: past a star that stands for no more, or by one character that both can stand for."""
    steps: list[tuple[int, int, bool]] = []
    if a and a[0] and a[1] in _STARS:
        steps.append((1, 0, edge))
    if b and b[0] and b[1] in _STARS and (b[1] != "**/" or edge):
        steps.append((0, 1, edge))
    if not a or not b:
        return steps
    for char in (a[1],) if not a[0] else (b[1],) if not b[0] else ("/", "x"):
        hidden = a[0] and edge and char == "."
        if not hidden and _stands_for(a, char) and _stands_for(b, char):
            steps.append((0 if a[0] and a[1] in _STARS else 1, 0 if b[0] and b[1] in _STARS else 1, char == "/"))
    return steps


def _stands_for(item: _Item, char: str) -> bool:
    return item[1] == char if not item[0] else char != "/" or item[1] in ("**", "**/")
