"""Text files of any encoding, shown to a model and edited so that no byte outside the edit ever changes.

The model sees `TextFile.text`: no BOM, every line end (CRLF, LF, a lone CR) as LF, every byte that is not valid in the file's
encoding as U+FFFD. Edits are found in that view and applied to the original bytes:

- lines that stay the same keep their bytes, whatever they are, also inside the replaced region;
- of a line that changes, the equal beginning and end keep their bytes, and U+FFFD in the new text stands for the odd bytes it
  stood for in the old;
- a new line takes the line end of the line it replaces, else the one most used in the region, else in the file. A CRLF that is
  written out in the new text is kept as it is, except in a file whose lines end with CRLF anyway.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property

_BOMS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MARK = "\ufeff"
_LEGACY = ["cp932", "gb18030", "big5", "euc_jp", "cp949", "cp1252", "cp1251", "cp1250", "koi8_r"]
_LATIN = {"cp1250", "cp1252", "latin_1", "iso8859_15"}
_SAMPLE = 64 << 10  # bytes looked at to guess an encoding
_DIFF_CELLS = 4_000_000  # old lines times new lines up to which an exact comparison is quick
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_LONE = re.compile("[\ud800-\udfff]")
_ASCII = re.compile("[\0-\x7f]+")


class NotText(Exception):
    """The bytes are not text that could be edited; the message says what they seem to be."""


class Unwritable(Exception):
    """The new text has a character that the file's encoding cannot hold; the message names both."""


@dataclass(frozen=True)
class TextFile:
    """A decoded file. `encoding` is a Python codec name, `bom` the mark at its start, `errors` how odd bytes are carried."""

    raw: bytes = field(repr=False)
    encoding: str
    bom: bytes
    errors: str
    chars: str = field(repr=False)
    """The decoded characters with their line ends; odd bytes as lone surrogates."""
    tail: bytes = b""
    """Bytes at the end that are no whole character (UTF-16 and UTF-32 only)."""

    @cached_property
    def text(self) -> str:
        """What a model sees."""
        text = self.chars.replace("\r\n", "\n").replace("\r", "\n") if "\r" in self.chars else self.chars
        return _visible(text)

    @cached_property
    def line_end(self) -> str:
        """The line end that most lines have: `"\\n"`, `"\\r\\n"` or `"\\r"`; LF for a file without any."""
        return _most_used(self.chars) or "\n"

    @cached_property
    def has_odd_bytes(self) -> bool:
        """Whether some bytes are not valid in the encoding and are shown as U+FFFD."""
        return bool(self.tail) or _visible(self.chars) != self.chars

    def find(self, wanted: str) -> list[int]:
        """The places in `text` where `wanted` begins (line ends of any kind match), without overlaps."""
        wanted = as_lines(wanted)
        found, at = [], self.text.find(wanted) if wanted else -1
        while at >= 0:
            found.append(at)
            at = self.text.find(wanted, at + len(wanted))
        return found

    def unmarked(self, old: str, new: str) -> tuple[str, str]:
        """An edit of the file's beginning without the BOM that a model copied from where it is shown: it is no part of `text`."""
        bare = old.removeprefix(_MARK)
        at_start = self.bom and self.text.startswith(as_lines(bare)) and not self.text.startswith(_MARK)
        return (bare, new.removeprefix(_MARK)) if at_start else (old, new)

    def replaced(self, starts: list[int], old: str, new: str) -> bytes:
        """The file's bytes with `new` where `old` stands at each of `starts` (ascending, from `find`). Raises `Unwritable`."""
        if "\r\n" in old:  # written by a model that believes the file to have CRLF; the file itself decides
            new = new.replace("\r\n", "\n")
        length = len(as_lines(old))
        pieces, done, place = [self.bom], 0, 0  # `done` in bytes behind the BOM, `place` in characters
        body = self._body
        for start in starts:
            first, last = self._place(start), self._place(start + length)
            begin = done + self._size(place, first)
            end = begin + self._size(first, last)
            pieces += [body[done:begin], self._merged(first, last, new)]
            done, place = end, last
        return b"".join([*pieces, body[done:]])

    def rewritten(self, content: str) -> bytes:
        """The bytes of the file with all its text replaced by `content`: BOM, encoding and line ends stay. Raises `Unwritable`."""
        if self.bom:
            content = content.removeprefix(_MARK)
        return self.bom + self._merged(0, len(self.chars), content)

    @cached_property
    def _body(self) -> bytes:
        return self.raw[len(self.bom) :]

    @cached_property
    def _pairs(self) -> list[int]:
        """Where in `text` a CRLF stands as LF."""
        places, at, before = [], self.chars.find("\r\n"), 0
        while at >= 0:
            places.append(at - before)
            before += 1
            at = self.chars.find("\r\n", at + 2)
        return places

    def _place(self, at: int) -> int:
        """The position in `chars` of a position in `text`."""
        return at + bisect_left(self._pairs, at)

    def _size(self, first: int, last: int) -> int:
        return len(self._encode(self.chars[first:last]))

    def _encode(self, text: str) -> bytes:
        try:
            return text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:  # old text never fails: the file was decoded so that encoding gives it back
            odd = text[error.start]
            raise Unwritable(f"The file is {self.encoding} and cannot hold {odd!r} (U+{ord(odd):04X}).") from None

    def _merged(self, first: int, last: int, new: str) -> bytes:
        """The bytes for `new` in place of `chars[first:last]`, keeping those of equal lines."""
        if self.line_end == "\r\n":
            new = new.replace("\r\n", "\n")
        old, fresh = _lines(self.chars[first:last]), new.split("\n")
        usual = _most_used(self.chars[first:last]) or self.line_end
        shown = [(_visible(body), bool(end)) for body, end in old]
        wanted = [(body, number < len(fresh)) for number, body in enumerate(fresh, 1)]
        pieces: list[str] = []
        for a, b, c, d in _changes(shown, wanted):
            if shown[a:b] == wanted[c:d]:
                pieces += [body + end for body, end in old[a:b]]
                continue
            bodies = _with_odd_bytes("\n".join(body for body, _ in old[a:b]), "\n".join(fresh[c:d])).split("\n") if c < d else []
            for number, body in enumerate(bodies):
                end = (old[a + number][1] if a + number < b else "") or usual
                if body.endswith("\r"):  # a CRLF written out in the new text
                    end = "\n"
                pieces += [body, end if wanted[c + number][1] else ""]
        return self._encode("".join(pieces))


def parse(raw: bytes) -> TextFile:
    """Decode a file so that every byte of it is accounted for. Raises `NotText` for what is not text."""
    for bom, encoding in _BOMS:
        if raw.startswith(bom):
            return _wide(raw, encoding, bom) if encoding != "utf-8" else _unicode(raw, bom)
    try:
        chars = raw.decode()
    except UnicodeDecodeError:
        pass
    else:
        if "\0" not in chars:
            return TextFile(raw, "utf-8", b"", "surrogateescape", chars)
    if b"\0" in raw:
        return _wide(raw, _wide_guess(raw), b"")
    return _unicode(raw, b"") if _mostly_utf8(raw) else _legacy(raw)


def as_lines(text: str) -> str:
    """`text` with every line end as LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unicode(raw: bytes, bom: bytes) -> TextFile:
    chars = raw[len(bom) :].decode("utf-8", "surrogateescape")
    if "\0" in chars:
        raise NotText("binary data")
    return TextFile(raw, "utf-8", bom, "surrogateescape", chars)


def _mostly_utf8(raw: bytes) -> bool:
    """Whether the valid multi-byte characters are not outnumbered by the bytes that are no UTF-8."""
    chars = raw.decode("utf-8", "surrogateescape")
    odd = len(_LONE.findall(chars))
    several = len(chars) - odd - sum(map(len, _ASCII.findall(chars)))
    return several >= max(odd, 1)


def _legacy(raw: bytes) -> TextFile:
    """Decode by a guessed code page if that gives every byte back, else as Latin-1, which always does."""
    encoding = _guess(raw)
    try:
        chars = raw.decode(encoding, "surrogateescape")
        if chars.encode(encoding, "surrogateescape") == raw:
            return TextFile(raw, encoding, b"", "surrogateescape", chars)
    except UnicodeError:
        pass
    return TextFile(raw, "latin-1", b"", "strict", raw.decode("latin-1"))


def _guess(raw: bytes) -> str:
    from charset_normalizer import from_bytes

    begin = next(number for number, byte in enumerate(raw) if byte > 127)
    lines = raw[raw.rfind(b"\n", 0, begin) + 1 :][:_SAMPLE].split(b"\n")
    best = from_bytes(b"\n".join(line for line in lines if not line.isascii()), cp_isolation=_LEGACY).best()
    if best is None:
        return "cp1252"
    # On few accented letters the Western and Central European pages look alike; the Western one is far more common.
    return "cp1252" if best.encoding in _LATIN and _LATIN & {"cp1252", *best.could_be_from_charset} else best.encoding


def _wide(raw: bytes, encoding: str, bom: bytes) -> TextFile:
    body = raw[len(bom) :]
    whole = len(body) - len(body) % (4 if "32" in encoding else 2)
    try:
        chars = body[:whole].decode(encoding, "surrogatepass")
    except UnicodeDecodeError:
        raise NotText("binary data") from None
    if "\0" in chars or chars.encode(encoding, "surrogatepass") != body[:whole]:
        raise NotText("binary data")
    return TextFile(raw, encoding, bom, "surrogatepass", chars, body[whole:])


def _wide_guess(raw: bytes) -> str:
    """UTF-16 without a mark: many zero bytes, on one side of the pairs only, and nothing but ordinary characters."""
    sample = raw[:_SAMPLE]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if len(raw) % 2 == 0 and min(even, odd) == 0 and 5 * max(even, odd) > len(sample) > 2:  # 40 % of the pairs: mostly ASCII
        encoding = "utf-16-be" if even else "utf-16-le"
        try:
            chars = sample.decode(encoding)
        except UnicodeDecodeError:
            chars = "\0"
        if all(char in "\t\n\r\f" or unicodedata.category(char) not in ("Cc", "Cn", "Co", "Cs") for char in set(chars)):
            return encoding
    raise NotText("binary data")


def _visible(text: str) -> str:
    return _LONE.sub("\ufffd", text)


def _with_odd_bytes(old: str, new: str) -> str:
    """`new` with each U+FFFD replaced by the odd byte of `old` that it stands for. Raises `Unwritable` when that is unclear."""
    shown = _visible(old)
    if shown == old or "\ufffd" not in new:
        return new
    head = _common(shown, new)
    tail = _common(shown[head:][::-1], new[head:][::-1])
    was, now = old[head : len(old) - tail], new[head : len(new) - tail]
    odd = [char for char in was if _visible(char) == "\ufffd"]
    if (marks := now.count("\ufffd")) not in (0, len(odd)):
        raise Unwritable(
            "The new text has U+FFFD in another number than the old text, which has bytes there that are not valid text; "
            "leave those parts out of the edit."
        )
    if marks:
        pieces = now.split("\ufffd")
        now = "".join(part for pair in zip(pieces, [*odd, ""], strict=True) for part in pair)
    return old[:head] + now + old[len(old) - tail :]


def _lines(chars: str) -> list[tuple[str, str]]:
    """The lines as (body, end); the last one has no end and may be empty."""
    found: list[tuple[str, str]] = _LINE.findall(chars)
    return found[:-1] if len(found) > 1 and not found[-2][1] else found


def _most_used(chars: str) -> str | None:
    pairs = chars.count("\r\n")
    counts = {"\r\n": pairs, "\n": chars.count("\n") - pairs, "\r": chars.count("\r") - pairs}
    end = max(counts, key=lambda key: counts[key])
    return end if counts[end] else None


def _changes(old: list[tuple[str, bool]], new: list[tuple[str, bool]]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of equal and of different lines as (old from, old to, new from, new to)."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    here, there = old[head : len(old) - tail], new[head : len(new) - tail]
    yield 0, head, 0, head
    if len(here) * len(there) > _DIFF_CELLS:
        yield head, len(old) - tail, head, len(new) - tail
    else:
        for _, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
            yield head + a, head + b, head + c, head + d
    yield len(old) - tail, len(old), len(new) - tail, len(new)


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    """How many items both begin with."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    return next(number for number in range(limit) if left[number] != right[number])
