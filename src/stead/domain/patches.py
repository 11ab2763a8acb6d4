"""A changed file as a patch that `git apply` takes, exact to the byte. Pure.

The format is git's (`git help diff-format`, "generating patch text with -p"): names with odd bytes are quoted as in C, symbolic
links are files of mode 120000, binary content is a literal in git's base 85.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import dataclass, replace

from stead.domain.hunks import groups

_ABSENT = b"/dev/null"
_PLAIN = re.compile(rb"[ !#-\[\]-~]+")
_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_LINE = 52


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What became of a file. A content of None: it was or is not there. Modes are git's: 0o100644, 0o100755, 0o120000. `origin`
    is the name it had before, where it was renamed."""

    path: bytes
    before: bytes | None
    after: bytes | None
    before_mode: int = 0o100644
    after_mode: int = 0o100644
    origin: bytes | None = None


def git_patch(diff: FileDiff) -> bytes:
    """The patch of one file; empty where nothing changed."""
    both = diff.before is not None and diff.after is not None
    if both and diff.before_mode & 0o170000 != diff.after_mode & 0o170000:  # a file became a link: one goes, the other comes
        return git_patch(replace(diff, after=None)) + git_patch(replace(diff, before=None, origin=None))
    old_name, new_name = diff.origin or diff.path, diff.path
    out = [b"diff --git %s %s\n" % (_name(b"a/", old_name), _name(b"b/", new_name))]
    if diff.before is None:
        out.append(b"new file mode %o\n" % diff.after_mode)
    elif diff.after is None:
        out.append(b"deleted file mode %o\n" % diff.before_mode)
    elif diff.before_mode != diff.after_mode:
        out.append(b"old mode %o\nnew mode %o\n" % (diff.before_mode, diff.after_mode))
    if diff.origin is not None:
        out.append(b"rename from %s\nrename to %s\n" % (_name(b"", old_name), _name(b"", new_name)))
    body = _body(diff, old_name, new_name)
    return b"".join([*out, *body]) if body or len(out) > 1 else b""


def _body(diff: FileDiff, old_name: bytes, new_name: bytes) -> list[bytes]:
    before, after = diff.before or b"", diff.after or b""
    if before == after:
        return []
    if b"\0" in before or b"\0" in after:
        index = b"index %s..%s\n" % (_object(diff.before), _object(diff.after))
        return [index, b"GIT binary patch\n", *_literal(after), *_literal(before)]
    old = _ABSENT if diff.before is None else _name(b"a/", old_name, end=b"\t")
    new = _ABSENT if diff.after is None else _name(b"b/", new_name, end=b"\t")
    out = [b"--- %s\n+++ %s\n" % (old, new)]
    a, b = (re.findall(rb"[^\n]*\n|[^\n]+", content) for content in (before, after))
    for group in groups(a, b):
        first, last = group[0], group[-1]
        old_lines, new_lines = last[2] - first[1], last[4] - first[3]
        at = (first[1] + bool(old_lines), old_lines, first[3] + bool(new_lines), new_lines)
        out.append(b"@@ -%d,%d +%d,%d @@\n" % at)
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_line(b" ", line) for line in a[i1:i2]]
                continue
            out += [_line(b"-", line) for line in a[i1:i2]]
            out += [_line(b"+", line) for line in b[j1:j2]]
    return out


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _literal(content: bytes) -> list[bytes]:
    packed = zlib.compress(content)
    out = [b"literal %d\n" % len(content)]
    for at in range(0, len(packed), _LINE):
        piece = packed[at : at + _LINE]
        size = len(piece) + (64 if len(piece) <= 26 else 70)  # A to Z, then a to z
        out.append(bytes([size]) + base64.b85encode(piece, pad=True) + b"\n")
    return [*out, b"\n"]


def _object(content: bytes | None) -> bytes:
    """The name that git gives a content."""
    if content is None:
        return b"0" * 40
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest().encode()


def _name(before: bytes, name: bytes, end: bytes = b"") -> bytes:
    """A name as git writes it; `end` goes behind one with a blank, which would not be told from what follows."""
    if not _PLAIN.fullmatch(name):
        return b'"' + before + b"".join(_ESCAPES.get(c, bytes([c]) if 32 <= c < 127 else b"\\%03o" % c) for c in name) + b'"'
    return before + name + (end if b" " in name else b"")
