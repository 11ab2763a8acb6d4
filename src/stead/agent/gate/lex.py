"""A second reader of shell words, independent of the grammar: only what both read the same way counts as a simple command."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Literal

Mark = Literal["glob", "expand", "brace", "odd", "ansi", "quoted"]
"""Unquoted wildcards, `$` or backticks, `{a,b}`, characters that look like something else, `$'..'`, any quoting."""

_META = frozenset("|&;<>()")
_EXPANDS = re.compile(r"\$[A-Za-z_0-9{(\[@*#?!$-]")
_TILDE = re.compile(r"~[^/\s]")  # `~user`, `~+`: folders that are not known here; `~` alone is
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ANSI_CODE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|c(.)|(.))", re.DOTALL)


@dataclass(slots=True)
class Word:
    """One word with its quotes removed; expansions stay as they were typed. `source` is the word as typed."""

    text: str = ""
    source: str = ""
    marks: set[Mark] = field(default_factory=set)


@dataclass(slots=True)
class _Reader:
    source: str
    at: int = 0
    start: int = 0
    word: Word | None = None
    words: list[Word] = field(default_factory=list)

    def add(self, text: str, *marks: Mark) -> None:
        if self.word is None:
            self.word, self.start = Word(), self.at
        self.word.text += text
        self.word.marks.update(marks)

    def close(self) -> None:
        if self.word is not None:
            self.word.source = self.source[self.start : self.at]
            if re.search(r"\{[^{}]*(,|\.\.)", self.word.source):  # quoted ones are taken for braces too: that only asks
                self.word.marks.add("brace")
            self.words.append(self.word)
            self.word = None


def words(source: str) -> list[Word] | None:
    """The words of a single command line; None when there is an operator, a second line or an open quote in it."""
    reader = _Reader(source)
    ended = False
    while reader.at < len(source):
        char = source[reader.at]
        if char in " \t\n":
            reader.close()
            ended = ended or (char == "\n" and bool(reader.words))
            reader.at += 1
            continue
        if char == "#" and reader.word is None:
            end = source.find("\n", reader.at)
            reader.at = len(source) if end < 0 else end
            continue
        if char in _META or ended:
            return None
        step = _step(reader, char)
        if step == 0:
            return None
        reader.at += step
    reader.close()
    return reader.words


def _step(reader: _Reader, char: str) -> int:
    """Read one item of a word at the reader's place; the number of characters it took, 0 when it never ends."""
    source, at = reader.source, reader.at
    if char == "\\":
        if at + 1 >= len(source):
            return 0
        if source[at + 1] != "\n":
            reader.add(source[at + 1], "quoted", *_looks(source[at + 1]))
        return 2
    if char == "'":
        end = source.find("'", at + 1)
        if end < 0:
            return 0
        reader.add(source[at + 1 : end], "quoted", *(("odd",) if "\0" in source[at:end] else ()))
        return end + 1 - at
    if char == '"':
        return _double(reader)
    if source.startswith("$'", at):
        return _ansi(reader)
    if source.startswith('$"', at):
        reader.add("", "odd")
        return 1
    if char == "`" or _EXPANDS.match(source, at) or (reader.word is None and _TILDE.match(source, at)):
        reader.add(char, "expand")
    elif char in "*?[":
        reader.add(char, "glob")
    else:
        reader.add(char, *_looks(char))
    return 1


def _double(reader: _Reader) -> int:
    source, at = reader.source, reader.at + 1
    reader.add("", "quoted")
    while at < len(source) and source[at] != '"':
        if source[at] == "\\" and source[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            reader.add("" if source[at + 1] == "\n" else source[at + 1])
            at += 2
            continue
        if source[at] == "`" or _EXPANDS.match(source, at):
            reader.add("", "expand")
        reader.add(source[at], *(("odd",) if source[at] == "\0" else ()))
        at += 1
    return at + 1 - reader.at if at < len(source) else 0


def _ansi(reader: _Reader) -> int:
    found = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(reader.source, reader.at)
    if not found:
        return 0
    reader.add(_ANSI_CODE.sub(_ansi_char, found[1]), "ansi", "quoted")
    return len(found[0])


def _ansi_char(found: re.Match[str]) -> str:
    octal, two, four, eight, control, letter = found.groups()
    if octal:
        return chr(int(octal, 8) & 255)
    if code := two or four or eight:
        return chr(min(int(code, 16), 0x10FFFF))
    return chr(ord(control) & 31) if control else _ANSI.get(letter, letter)


def _looks(char: str) -> tuple[Mark, ...]:
    """`odd` for characters outside quotes that a reader would not see or would take for a blank."""
    if " " < char <= "~" or char == " ":
        return ()
    return ("odd",) if not char.isprintable() or unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cf", "Cc", "Cs") else ()


_BRACES = re.compile(r"(?<!\$)\{([^{}]*,[^{}]*)\}")


def braces(source: str, limit: int = 32) -> list[str]:
    """A word's source with `{a,b}` written out, as the shell does before anything else; at most `limit` results."""
    todo, done = [source], list[str]()
    while todo and len(todo) + len(done) <= limit:
        word = todo.pop(0)
        found = _BRACES.search(word)
        if not found:
            done.append(word)
        else:
            todo = [word[: found.start()] + item + word[found.end() :] for item in found[1].split(",")] + todo
    return done + todo
