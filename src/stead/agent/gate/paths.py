"""Paths: where a typed path really leads, and whether a path rule covers it.

Every path has two faces, the typed one and the real one (symlinks resolved, also above files that do not exist yet). A deny of
either face denies; an allow has to cover both, else a link inside the project would open what lies behind it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stead.agent.gate import glob

_FOLDS_CASE = sys.platform == "darwin"  # the usual disk there finds .ENV under .env


@dataclass(frozen=True, slots=True)
class Places:
    """The two folders that patterns start from, each as given and resolved."""

    project: tuple[str, ...]
    home: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """An absolute path: `typed` with `.` and `..` taken away by the letters, `real` as the system would open it."""

    typed: str
    real: str
    sound: bool = True
    """Whether the system could open it at all: not with a NUL or half a character in it."""

    @property
    def faces(self) -> tuple[str, ...]:
        return (self.typed,) if self.typed == self.real else (self.typed, self.real)


def places(project: Path, home: Path) -> Places:
    """Resolve both folders once for a judgement."""
    return Places(_both(project), _both(home))


def _both(folder: Path) -> tuple[str, ...]:
    typed = _clean(os.path.abspath(folder))
    return tuple(dict.fromkeys((typed, _real(typed))))


def _clean(path: str) -> str:
    """Without `.`, `..`, doubled and trailing slashes; two leading slashes are one (POSIX leaves them open)."""
    flat = os.path.normpath(path)
    return flat[1:] if flat.startswith("//") else flat


def _real(path: str) -> str:
    try:
        return _clean(os.path.realpath(path))
    except (OSError, ValueError):  # not `sound`: the typed face stands alone
        return _clean(path)


def locate(text: str, where: Places, base: str | None = None) -> Spot:
    """The spot that a typed path names. `~` and `~/` are the home folder; `base` is where a shell is."""
    start = base or where.project[0]
    owner, slash, rest = text.partition("/")
    if base and owner in ("~+", "~-"):  # the shell's names for where it is and was
        text = "." + slash + rest
    elif base and owner == "~" + os.path.basename(where.home[0]):
        text = "~" + slash + rest
    if text == "~" or text.startswith("~/"):
        full = where.home[0] + "/" + text[2:]
    else:
        full = text if text.startswith("/") else start + "/" + text
    return Spot(_clean(full), _real(full), _sound(full))


def _sound(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def inside(spot: Spot, where: Places) -> bool:
    """Whether both faces lie in the project."""
    return spot.sound and all(any(below(face, root) for root in where.project) for face in spot.faces)


def below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies under it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def fits_path(pattern: str, face: str, where: Places, *, deny: bool = False, itself: bool = True) -> bool:
    """Whether a path pattern covers one face. `itself`: `folder/**` covers the folder too, not only what is below it."""
    if deny and _FOLDS_CASE:
        pattern, face = pattern.casefold(), face.casefold()
        where = Places(tuple(p.casefold() for p in where.project), tuple(h.casefold() for h in where.home))
    for root, rest in _anchors(pattern, where, deny):
        root, path = glob.nfc(root), glob.nfc(face)
        if not below(path, root):
            continue
        tail = path[len(root) :].strip("/")
        if any(glob.fits(tokens, tail, slash=True) for tokens in _readings(rest, itself)):
            return True
    return False


def fits_glob(pattern: str, word: str, where: Places, base: str, *, above: bool = False) -> bool:
    """Whether a word with shell wildcards could name a file that a deny pattern covers; `above`: or a folder that holds one."""
    full = word if word.startswith("/") else where.home[0] + word[1:] if word.startswith("~/") else base + "/" + word
    head = re.split(r"[*?\[]", full, maxsplit=1)[0].rpartition("/")[0]
    tail = full[len(head) :]
    for start in dict.fromkeys((_clean(head or "/"), _real(head or "/"))):
        shell = glob.shell_tokens(glob.escaped(start.rstrip("/")).replace("[", "\\[") + tail)
        for root, rest in _anchors(pattern, where, True):
            fixed = glob.nfc(_clean(os.path.join(root, _split(rest)[0])))
            if not os.path.lexists(fixed):
                continue  # what the rule names is not there: the shell will not find it
            if above and any(glob.fits(shell, folder, slash=True) for folder in (fixed, *map(str, Path(fixed).parents))):
                return True
            lead: list[glob.Token] = [glob.Lit(glob.nfc(root).rstrip("/"))]
            for tokens in _readings(rest, False):
                if glob.meet(shell, [*lead, glob.Lit("/"), *tokens] if tokens else lead):
                    return True
    return False


def holds(pattern: str, face: str, where: Places) -> bool:
    """Whether what a pattern names begins in or below the folder `face`: removing the folder would remove it."""
    return any(below(_clean(os.path.join(root, _split(rest)[0])), face) for root, rest in _anchors(pattern, where, True))


def _anchors(pattern: str, where: Places, deny: bool) -> list[tuple[str, str]]:
    """The pattern as (literal folder, rest) for each form the folder has.

    A deny pattern also follows the links in its literal part. An allow pattern does not: whoever may write in the project could
    turn a folder of it into a link. Only the first name below `/` is resolved for it, where systems keep links (/tmp, /etc).
    """
    if pattern == "~" or pattern.startswith("~/"):
        roots, rest = where.home, pattern[2:]
    elif pattern.startswith("/"):
        first, slash, more = pattern[1:].partition("/")
        roots, rest = ("/",), pattern.lstrip("/")
        if slash and first and not _wild(first) and "\\" not in first and first not in (".", ".."):
            roots, rest = tuple(dict.fromkeys(("/" + first, _real("/" + first)))), more
    else:
        roots, rest = where.project, pattern
    found = [_climb(root, rest) for root in roots]
    if deny:
        for root, rest in list(found):
            fixed, more = _split(rest)
            found.append((_real(os.path.join(root, fixed)), more))
    return list(dict.fromkeys(found))


def _climb(root: str, rest: str) -> tuple[str, str]:
    """Take `.` and `..` out of the rest of a pattern; a `..` at its start moves the root up."""
    names: list[str] = []
    for name in rest.split("/"):
        if name == "..":
            if names:
                names.pop()
            else:
                root = os.path.dirname(root)
        elif name not in ("", "."):
            names.append(name)
    return root, "/".join(names)


def _split(rest: str) -> tuple[str, str]:
    """The leading names without wildcards (unescaped), and what follows."""
    names = rest.split("/")
    count = next((n for n, name in enumerate(names) if _wild(name)), len(names))
    fixed = "".join(token for token in glob.text_tokens("/".join(names[:count])))
    return fixed, "/".join(names[count:])


@lru_cache(4096)
def _wild(name: str) -> bool:
    return any(type(token) is not glob.Lit for token in glob.path_tokens(name))


@lru_cache(4096)
def _readings(rest: str, itself: bool) -> list[list[glob.Token]]:
    """What a pattern below its folder may fit: itself, and all below when its last name has no wildcard (it names a folder)."""
    tokens = glob.path_tokens(rest)
    readings = [tokens]
    if not rest:
        return [[], [glob.Lit(""), "**"]]
    if not _wild(rest.rpartition("/")[2]):
        readings.append([*tokens, glob.Lit("/"), "**"])
    if rest == "**" or rest.endswith("/**"):
        if itself:
            readings.append(glob.path_tokens(rest[:-3]))
        # The folder alone is nothing below it: `build/**` must not catch the word `build`.
        readings[0] = [*tokens[:-1], "?", "**"]
    return readings
