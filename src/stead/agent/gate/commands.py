"""Judging shell commands: one simple command by its patterns, everything else by the rule for the whole tool; denies always."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from stead.agent.gate import paths
from stead.agent.gate.decision import Decision, PartDecision, reason, strictest
from stead.agent.gate.rules import EDITS, LAYERS, READS, STRICT, Action, Rule, decide, fits_command, whole_allow
from stead.agent.gate.shell import Part, Redirect, Script, read

_SCRIPT_NAMES = frozenset(["npm", "pnpm", "yarn", "bun", "make", "just", "task", "cargo", "go", "gradle", "mvn"])
"""Their bare words name scripts and targets: `npm run build` is not the folder `build`."""
_TALKERS = frozenset({"echo", "printf", "true", "false", ":"})
_FOLDER_NAMES = """
ls cat grep egrep fgrep rg ag find fd tree du cp mv rm rmdir rsync tar zip scp chmod chown chgrp ln shred git wc diff cd pushd
"""
_FOLDERS = frozenset(_FOLDER_NAMES.split())
"""Their arguments may stand for everything below a folder."""
_DESTROYERS = frozenset(["rm", "rmdir", "mv", "shred", "chmod", "chown", "chgrp", "unlink"])
_SEARCHERS = frozenset(["grep", "egrep", "fgrep", "rg", "ag", "sed", "awk", "gawk", "jq"])

_FIND_TESTS = frozenset(["-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex"])
"""What follows these is compared with names, not opened."""


def written_outside(command: str, where: paths.Places) -> list[str]:
    """The files outside of the project that the redirections of a command write, by their real paths."""
    script = read(command, {"HOME": where.home[0], "PWD": where.project[0], "IFS": " "})
    spots = [paths.locate(redirect.path, where, where.project[0]) for redirect in script.redirects if redirect.tool == "edit"]
    return list(dict.fromkeys(spot.real for spot in spots if spot.sound and not paths.inside(spot, where)))


def judge_command(rules: Sequence[Rule], tool: str, command: object, where: paths.Places) -> Decision:
    """Judge the input of `bash` (and what `bash_input` types into a running shell, which is never a simple command)."""
    if not isinstance(command, str):
        rule = decide((rule for rule in rules if rule.whole and rule.action != "allow"), tool, lambda _: True)
        return Decision(rule.action if rule else "ask", rule, reason("ask", rule, "The input has no command."), [])
    script = read(command, {"HOME": where.home[0], "PWD": where.project[0], "IFS": " "})
    simple = script.simple and not script.why and not script.cut and tool == "bash"
    bases = _bases(script, where)
    parts = [_judge_part(rules, tool, part, where, bases) for part in script.parts]
    parts += [_judge_redirect(rules, tool, redirect, where) for redirect in script.redirects]
    worst = strictest(parts)
    if worst is not None and (simple or worst.action == "deny"):
        return Decision(worst.action, worst.rule, reason(worst.action, worst.rule, f"No rule speaks of {worst.text}."), parts)
    return _judge_rest(rules, tool, script, parts)


def _judge_rest(rules: Sequence[Rule], tool: str, script: Script, parts: list[PartDecision]) -> Decision:
    """What cannot be judged by patterns: allowed only by a rule for the whole tool that nothing stricter could outrank."""
    what = script.why or "a running shell"
    whole = whole_allow(rules, tool)
    if whole is not None and whole.action != "allow":
        return Decision(whole.action, whole, reason(whole.action, whole, ""), parts)
    why = f"{what[:1].upper()}{what[1:]}, so no pattern covers it." if script.simple else f"It has {what}, which no pattern covers."
    if whole is None:
        return Decision("ask", None, f"{why} Only the rule bash without a pattern would allow it.", parts)
    asking = next((part for part in parts if part.action == "ask" and part.rule is not None), None)
    if asking is not None:
        return Decision("ask", asking.rule, reason("ask", asking.rule, ""), parts)
    deny = next((rule for rule in rules if rule.action == "deny" and rule.covers("bash")), None)
    if deny is None and script.cut:
        deny = next((rule for rule in rules if rule.action == "deny"), None)
    if deny is not None:
        return Decision("ask", None, f"{why} The rule {deny.text} denies some commands, and this may be one of them.", parts)
    nearer = next((rule for rule in rules if rule.action == "ask" and rule.covers("bash") and _outranks(rule, whole)), None)
    if nearer is not None:
        return Decision("ask", nearer, f"{why} The rule {nearer.text} asks for some commands, and this may be one of them.", parts)
    return Decision("allow", whole, reason("allow", whole, ""), parts)


def _outranks(rule: Rule, whole: Rule) -> bool:
    return LAYERS.index(rule.layer) <= LAYERS.index(whole.layer)


def _judge_part(rules: Sequence[Rule], tool: str, part: Part, where: paths.Places, bases: list[str]) -> PartDecision:
    """One simple command: its text by the bash rules, its other spellings where they are stricter, its paths by deny rules."""
    rule = decide(rules, tool, lambda rule: fits_command(rule.pattern or "*", part.text))
    action: Action = rule.action if rule else "ask"
    if rule is not None and action == "allow" and not rule.whole and part.cargo.why:
        rule, action = None, "ask"
    for text in _variants(part):
        other = decide(rules, tool, lambda rule, text=text: fits_command(rule.pattern or "*", text))  # type: ignore[misc]
        if other is not None and STRICT[other.action] > STRICT[action]:
            rule, action = other, other.action
    if action != "deny" and (denied := _denied_path(rules, part, where, bases)):
        return denied
    return PartDecision(part.text, action, rule)


def _variants(part: Part) -> Iterator[str]:
    """Other spellings of the same command, by which it may only be judged more strictly."""
    command = part.command
    if part.assignments:
        yield " ".join(command)
    if command and "/" in command[0]:
        yield " ".join([command[0].rsplit("/", 1)[1], *command[1:]])
    if "$" in part.text or "`" in part.text:  # a variable that is not set leaves nothing behind
        yield " ".join(re.sub(r"\$\w+|\$\{[^}]*\}|\$\([^)]*\)|`[^`]*`", "", " ".join(command)).split())


def _judge_redirect(rules: Sequence[Rule], tool: str, redirect: Redirect, where: paths.Places) -> PartDecision:
    """A redirection is the edit or read of a path: denied by those rules, and never allowed by a pattern of the command."""
    text = f"{'>' if redirect.tool == 'edit' else '<'} {redirect.path}"
    for rule in _path_denies(rules, EDITS if redirect.tool == "edit" else READS):
        if rule.pattern is None or any(_hits(rule, face, where, True) for face in paths.locate(redirect.path, where).faces):
            return PartDecision(text, "deny", rule)
    whole = whole_allow(rules, tool)
    return PartDecision(text, whole.action if whole else "ask", whole)


# -- paths among the arguments


def _path_denies(rules: Sequence[Rule], tools: frozenset[str]) -> list[Rule]:
    """Deny rules for these path tools; those of list, glob and grep alone say nothing about commands."""
    return [rule for rule in rules if rule.action == "deny" and rule.tool in tools & {"read", "edit", "write"}]


def _denied_path(rules: Sequence[Rule], part: Part, where: paths.Places, bases: list[str]) -> PartDecision | None:
    """The decision forced by an argument that is, or may expand to, a denied path."""
    denies = _path_denies(rules, READS | EDITS)
    if not denies:
        return None
    name = part.command[0].rsplit("/", 1)[-1] if part.command else ""
    if part.cargo.writes and (rule := next((rule for rule in denies if rule.tool in EDITS and rule.pattern is None), None)):
        return PartDecision(part.text, "deny", rule)
    patterned = [rule for rule in denies if rule.pattern is not None]
    asking: PartDecision | None = None
    for word, wild in _path_words(part, name) if patterned else ():
        for base in bases:
            found = _tried(patterned, name, word, wild, base, where)
            if found is not None and found[1] == "deny":
                return PartDecision(part.text, "deny", found[0])
            if found is not None:
                asking = PartDecision(part.text, "ask", found[0])
    return asking


def _tried(denies: list[Rule], name: str, word: str, wild: bool, base: str, where: paths.Places) -> tuple[Rule, Action] | None:
    """Try one word as a path. A word with wildcards that could name a denied file asks: which files there are is not known."""
    if wild and any(char in word for char in "*?["):
        for rule in denies:
            above = name in _DESTROYERS and rule.tool in EDITS
            if paths.fits_glob(rule.pattern or "", word, where, base, above=above):
                return rule, "ask"
        return None
    faces = paths.locate(word, where, base).faces
    for rule in denies:
        if any(_hits(rule, face, where, name in _FOLDERS) for face in faces):
            return rule, "deny"
        if name in _DESTROYERS and rule.tool in EDITS and any(paths.holds(rule.pattern or "", face, where) for face in faces):
            return rule, "deny"
    return None


def _hits(rule: Rule, face: str, where: paths.Places, itself: bool) -> bool:
    return paths.fits_path(rule.pattern or "", face, where, deny=True, itself=itself)


def _path_words(part: Part, name: str) -> Iterator[tuple[str, bool]]:
    """The words of a command that may be paths, also behind `=`, `:`, `@`, `,` and glued to a short option."""
    command, globs = part.command, part.globs[part.assignments :]
    if command and "/" in command[0]:
        yield command[0], False
    if name in _TALKERS:
        return
    skip = _search_text(command) if name in _SEARCHERS else -1
    assigned = [(word.partition("=")[2], False) for word in part.words[: part.assignments]]
    for at, (word, wild) in enumerate(chain(zip(command, globs, strict=True), assigned)):
        if at in (0, skip) or (name in _SCRIPT_NAMES and re.fullmatch(r"[\w:-]+", word)):
            continue
        if name == "find" and 0 < at < len(command) and command[at - 1] in _FIND_TESTS:
            continue
        if "://" in word and not word.startswith("file://"):
            continue
        pieces = [word.removeprefix("file://"), *re.split("[=:,@]", word)]
        if re.match("-[A-Za-z]", word):
            pieces.append(word[2:])
        for piece in dict.fromkeys(pieces):
            if piece and (piece[0] != "-" or at >= len(command)) and len(piece) < 4096:
                yield piece, wild


def _search_text(command: list[str]) -> int:
    """Where the text to search for stands, which is no path; -1 where it is not certain."""
    for at, word in enumerate(command[1:], 1):
        if not word.startswith("-"):
            return at
        # -e and -f give the text themselves, and any unknown long option might.
        if not re.fullmatch(r"-[A-Za-dg-z]*", word) and not word.startswith(("--color", "--include", "--exclude")):
            return -1
    return -1


def _bases(script: Script, where: paths.Places) -> list[str]:
    """The folders that relative arguments may start from: the project, and wherever `cd` or `-C` in the same text leads."""
    bases = [where.project[0]]
    for part in script.parts:
        words = part.command
        targets = words[1:2] if words[:1] in (["cd"], ["pushd"]) else []
        targets += [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-C", "--directory", "--cwd", "--prefix")]
        for target in targets[:4]:
            for base in bases[:4]:
                folder = os.path.normpath(target if target.startswith("/") else base + "/" + target)
                if len(bases) < 8 and folder not in bases:
                    bases.append(folder)
    return bases
