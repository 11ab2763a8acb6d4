"""Walking a tree as git sees it, globs, and a line search: what `glob` uses, and what `grep` uses where there is no ripgrep.

This file is also run as a program by its path, in a process of its own (`grep` gives it a request on stdin): a regular
expression that never ends can be killed there, while inside stead it would hold up everything. So it imports nothing of stead.
It answers in the JSON lines of `rg --json`, in the same order as `rg --sort path`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

Chain = list[tuple[str, Any]]
"""The .gitignore files that hold in a folder, outermost first: (the folder of each, relative to the start; its rules)."""

_WINDOW = 4_000  # bytes kept of a very long line, around the match
_PIECE = 1 << 20  # bytes read at once of a line without end
_SNIFF = 64 << 10


def walk(
    start: str, chain: Chain, skip: str | None = None, stop: Callable[[], bool] = bool, named: str | None = None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The files below `start` as (path relative to it, entry), by name, depth first; links are not followed.

    Left out: `.git`, what `chain` and the .gitignore files below `start` ignore (but not a file called `named`), the folder
    `skip`. Ends when `stop()` is true.
    """
    folders: list[Iterator[tuple[str, os.DirEntry[str], Chain]]] = [_entries(start, "", chain, named)]
    while folders:
        for relative, entry, rules in folders[-1]:
            if stop():
                return
            if not _is_folder(entry):
                yield relative, entry
            elif entry.path != skip:
                folders.append(_entries(entry.path, f"{relative}/", rules, named))
                break
        else:
            folders.pop()


def _entries(folder: str, prefix: str, chain: Chain, named: str | None) -> Iterator[tuple[str, os.DirEntry[str], Chain]]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return
    if any(entry.name == ".gitignore" for entry in entries):
        chain = [*chain, *rules_of(folder, prefix)]
    for entry in entries:
        relative, is_folder = prefix + entry.name, _is_folder(entry)
        if entry.name == ".git":
            continue
        if not chain or (entry.name == named and not is_folder) or not ignored(chain, relative + "/" * is_folder):
            yield relative, entry, chain


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def rules_of(folder: str, prefix: str) -> Chain:
    """The rules in the .gitignore of `folder`, which lies at `prefix` (empty or with a `/` at its end) from the start."""
    from pathspec import GitIgnoreSpec

    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(1 << 20).split("\n")
    except OSError:
        return []
    try:
        return [(prefix, GitIgnoreSpec.from_lines(lines))]
    except ValueError:  # one impossible line does not take the others with it, as in git
        return [(prefix, GitIgnoreSpec.from_lines(filter(_possible, lines)))]


def _possible(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def ignored(chain: Chain, relative: str) -> bool:
    """Whether the path (a folder ends with `/`) is ignored: the innermost file that says something about it decides."""
    for prefix, rules in reversed(chain):
        if prefix.startswith(".."):  # rules of a folder above the start, whose path down to it is `prefix` without the dots
            told = rules.check_file(prefix[2:] + relative).include
        else:
            told = rules.check_file(relative[len(prefix) :]).include
        if told is not None:
            return bool(told)
    return False


def chain_above(top: str, start: str) -> Chain:
    """The rules of the folders from `top` down to above `start`. None hold when `start` itself is ignored: then it was meant."""
    if start == top or not start.startswith(top.rstrip("/") + "/"):
        return []
    steps = os.path.relpath(start, top).split("/")
    chain: Chain = []
    for depth in range(len(steps)):
        folder = os.path.join(top, *steps[:depth])
        chain += rules_of(folder, ".." + "/".join(steps[depth:]) + "/")
    return [] if ignored(chain, "") else chain


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A compiled glob for `fullmatch` on relative paths: `*`, `?` and `[abc]` inside one name, `**` across folders, `{a,b}`.

    Without a `/` it may match at any depth. Names that begin with a dot are like others.
    """
    return re.compile("|".join(_one_glob(each) for each in _braces(glob)), re.DOTALL)


def _one_glob(glob: str) -> str:
    steps = glob.removeprefix("./").removeprefix("/").split("/")
    if "/" not in glob:
        steps = ["**", *steps]
    out = ""
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        if step == "**":
            if last or number == 0 or steps[number - 1] != "**":
                out += ".+" if last else "(?:[^/]+/)*"
        else:
            out += _step(step) + ("" if last else "/")
    return out


def _step(step: str) -> str:
    """One name of a glob. Every star but the last is atomic (it takes the nearest fit), so that matching stays quick."""
    parts = [""]
    at = 0
    while at < len(step):
        char = step[at]
        end = step.find("]", at + 2) if char == "[" else -1
        if char == "*":
            parts.append("")
        elif char == "?":
            parts[-1] += "[^/]"
        elif end > 0:
            inner = re.sub(r"([\\\[&~|])", r"\\\1", step[at + 1 : end])
            parts[-1] += f"[^/{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
            at = end
        else:
            if char == "\\" and at + 1 < len(step):
                at += 1
                char = step[at]
            parts[-1] += re.escape(char)
        at += 1
    if len(parts) == 1:
        return parts[0]
    return parts[0] + "".join(f"(?>[^/]*?{part})" for part in parts[1:-1] if part) + f"[^/]*{parts[-1]}"


def _braces(glob: str, most: int = 64) -> list[str]:
    """The globs that `{a,b}` stands for, the innermost braces first; unbalanced braces are ordinary characters."""
    done: list[str] = []
    todo = [glob]
    while todo and len(done) + len(todo) < most:
        each = todo.pop()
        if found := re.search(r"(?<!\\)\{([^{}]*,[^{}]*)\}", each):
            todo += [each[: found.start()] + choice + each[found.end() :] for choice in reversed(found[1].split(","))]
        else:
            done.append(each)
    return done + todo


def search(request: dict[str, Any], put: Callable[[bytes], object]) -> None:
    """Search by `request` (`path`, `top`, `pattern`, `ignore_case`, `glob`, `skip`) and `put` a JSON line for each line found."""
    wanted = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    glob, path = request["glob"], request["path"]
    names = glob_pattern(glob.removeprefix("!")) if glob else None
    if not os.path.isdir(path):
        _search_file(path, os.path.basename(path), wanted, put)
        return
    for relative, entry in walk(path, chain_above(request["top"], path), request["skip"]):
        if names and (names.fullmatch(relative) is None) != glob.startswith("!"):
            continue
        if entry.is_file(follow_symlinks=False):
            _search_file(entry.path, relative, wanted, put)


def _search_file(path: str, name: str, wanted: re.Pattern[str], put: Callable[[bytes], object]) -> None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            start = file.read(_SNIFF)
            file.seek(0)
            if start.startswith((b"\xff\xfe", b"\xfe\xff")):
                lines: Iterator[bytes] = iter(file.read().decode("utf-16", "replace").encode().splitlines(keepends=True))
            elif b"\0" in start:
                return
            else:
                lines = iter(lambda: file.readline(_PIECE), b"")
            number = 1
            for line in lines:
                text = line.rstrip(b"\r\n").decode("utf-8", "replace")
                if found := wanted.search(text):
                    _put_match(name, number, text, found.start(), put)
                number += line.endswith(b"\n")
    except OSError:
        return


def _put_match(name: str, number: int, text: str, start: int, put: Callable[[bytes], object]) -> None:
    begin = max(start - _WINDOW // 4, 0) if len(text) > _WINDOW else 0
    shown = text[begin : begin + _WINDOW]
    offset = len(text[begin:start].encode())
    data = {"path": _name(name), "lines": {"text": shown}, "line_number": number, "submatches": [{"start": offset}]}
    put(json.dumps({"type": "match", "data": data}).encode() + b"\n")


def _name(name: str) -> dict[str, str]:
    raw = os.fsencode(name)
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(raw).decode()}


if __name__ == "__main__":
    asked = json.loads(sys.stdin.buffer.read())
    sys.path[:] = asked["imports"]  # where stead's own process finds pathspec
    search(asked, lambda line: (sys.stdout.buffer.write(line), sys.stdout.buffer.flush()))
