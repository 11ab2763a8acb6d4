"""What a command carries: other commands (sudo, xargs, find -exec), code (bash -c, awk) and options that write or delete.

In this first version such a command is never allowed by a pattern of its outer words. What it carries is still looked at, so
that a deny rule for the inner command holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stead.agent.gate.known import CODE, PREFIXES, SHELLS, WRITES

_GIT_EXEC = ("--exec", "--upload-pack", "--receive-pack", "--open-files-in-pager", "--extcmd", "--ext-diff", "--template")
_GIT_RUNS = frozenset(
    ["filter-branch", "config", "submodule", "difftool", "mergetool", "bisect", "daemon", "credential", "send-email", "hook"]
)
_INTERPRETERS = r"(python|perl|ruby|node|php|lua|julia|R$|Rscript)"
_SED_TEXT = r"(?:(?!(?P=d))[^\n;{}\\])*(?P=d)"
_SAFE_SED = re.compile(rf"[\d,$;! ]*[pdq=]?|(?:\d*(?:,[\d$]+)?)?s(?P<d>[/|,#]){_SED_TEXT}{_SED_TEXT}[gpiI0-9]*")


@dataclass(slots=True)
class Cargo:
    """What was found in a command: why it cannot be judged by its outer words, the commands and the shell code in it."""

    why: str | None = None
    writes: bool = False
    commands: list[list[str]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)


def cargo(words: list[str], globs: list[bool]) -> Cargo:
    """Look into a simple command without its assignments. `globs` says which words the shell will expand to file names."""
    found = Cargo()
    if not words:
        return found
    name, args = words[0].rsplit("/", 1)[-1], words[1:]
    base = re.sub(r"[\d.]+$", "", name) or name
    if name == "command" and args[:1] in (["-v"], ["-V"]):
        return found
    if name in PREFIXES:
        found.why = f"{name} runs what follows it"
        found.commands = _inner(name, args)
        found.scripts = [word for word in args if re.search(r"[\s;|&`$()]", word)]
        if name in ("eval", "ssh", "watch", "su", "trap", "alias"):
            found.scripts += [" ".join(args), " ".join(args[1:]), *(word.partition("=")[2] for word in args)]
    elif name in SHELLS:
        _shell(name, args, found)
    elif name in ("awk", "gawk", "mawk", "nawk", "original-awk"):
        found.why = f"{name} can run commands and write files"
        found.scripts = [text for word in args for text in re.findall(r'"((?:[^"\\]|\\.)*)"', word)]
    elif name == "find":
        _find(args, found)
    elif name == "git":
        _git(args, found)
    elif name == "sed" and not _sed_is_safe(args):
        found.why = "this sed program can write files or run commands"
        found.scripts = [word.rpartition("e ")[2] for word in args if "e " in word]
    elif base in CODE:
        _code(name, CODE[base], args, found)
    _writes(base, args, globs[1:], found)
    return found


def _inner(name: str, args: list[str]) -> list[list[str]]:
    """Each tail of the words that may be the carried command: an option may or may not take the next word as its value."""
    flags, found, at = "".join(PREFIXES[name]), list[list[str]](), 0
    positionals = int(name in ("timeout", "chroot", "flock", "ssh", "rsh", "trap", "taskset", "chrt", "su", "runuser"))
    while at < len(args) and len(found) < 6:
        word = args[at]
        if word.startswith("-") and word != "-" and word != "--":
            at += 1
            takes = "=" not in word and (word.startswith("--") or not set(word[1:]) <= set(flags))
            if takes and at < len(args) and not args[at].startswith("-"):
                found.append(args[at:])
                at += 1
            continue
        if word == "--" or re.fullmatch(r"[A-Za-z_]\w*=.*", word, re.DOTALL):
            at += 1
            continue
        found.append(args[at:])
        if positionals == 0:
            break
        positionals -= 1
        at += 1
    return found


def _shell(name: str, args: list[str], found: Cargo) -> None:
    for at, word in enumerate(args):
        if word in ("-c", "--command") or re.fullmatch(r"[-+][A-Za-z]*[cs][A-Za-z]*", word):
            found.why = f"{name} {word} runs the text that follows"
            found.scripts.extend(args[at + 1 :])
    if not args:
        found.why = f"{name} runs what it is sent"


def _find(args: list[str], found: Cargo) -> None:
    for at, word in enumerate(args):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            found.why = f"find {word} runs a command for each file"
            inner = args[at + 1 :]
            end = next((n for n, item in enumerate(inner) if item == ";" or (item == "+" and inner[n - 1] == "{}")), len(inner))
            found.commands.append(inner[:end])


def _git(args: list[str], found: Cargo) -> None:
    at = 0
    while at < len(args) and args[at].startswith("-"):  # options of git itself, in front of the subcommand
        if args[at] in ("-c", "--config-env", "--exec-path") or args[at].startswith(("-c", "--config-env=", "--exec-path=")):
            found.why = f"git {args[at]} can make git run any command"
            value = args[at + 1] if args[at] == "-c" and at + 1 < len(args) else args[at]
            found.scripts += [value.partition("=")[2].lstrip("!"), value.partition("=")[2].replace("!", "", 1)]
        at += 2 if args[at] in ("-c", "-C", "--git-dir", "--work-tree", "--namespace", "--config-env", "--exec-path") else 1
    if any("ext::" in word for word in args):
        found.why = "git's ext:: addresses run commands"
        found.scripts += [word.partition("ext::")[2] for word in args]
    command, rest = (args[at], args[at + 1 :]) if at < len(args) else ("", [])
    if command in _GIT_RUNS:
        found.why = found.why or f"git {command} can run commands"
        found.scripts += [word.lstrip("!") for word in rest]
        found.commands += [rest[n:] for n in (1, 2) if rest[n:]]
    for n, word in enumerate(rest):
        name, _, value = word.partition("=")
        short = {"rebase": "-x", "grep": "-O", "difftool": "-x", "clone": "-u"}.get(command)
        if is_option(word, _GIT_EXEC) or (short and word.startswith(short)):
            found.why = found.why or f"git {command} {name} runs a command"
            found.scripts += [value, word[2:], *rest[n + 1 : n + 2]]
        if command in ("archive", "format-patch", "bundle") and word.startswith("-o"):
            found.why, found.writes = found.why or f"git {command} -o writes a file", True


def _sed_is_safe(args: list[str]) -> bool:
    scripts = [word for word in args if not word.startswith("-")][:1]
    options = [word for word in args if word.startswith("-")]
    plain = all(re.fullmatch(r"-[nErsuz]+|--quiet|--silent|--regexp-extended|--posix", word) for word in options)
    return plain and all(_SAFE_SED.fullmatch(word) for word in scripts)


def _code(name: str, options: tuple[str, ...], args: list[str], found: Cargo) -> None:
    before, plain = "", 0
    for at, word in enumerate(args):
        named = word.startswith(("-", "+")) or plain == 0 or name in ("docker", "podman", "kubectl")  # subcommands stand first
        if named and (is_option(word, options) or _clustered(word, options)):
            found.why = f"{name} {word.partition('=')[0]} runs code or another command"
            found.scripts += [word.partition("=")[2], *args[at + 1 : at + 2]]
            found.scripts += re.findall(r"""["'`]([^"'`]+)["'`]""", " ".join(args[at:]))
            found.commands += [args[n:] for n in range(at + 1, min(at + 6, len(args))) if not args[n].startswith("-")]
            break
        if re.match(_INTERPRETERS, name) and not word.startswith("-") and (not before.startswith("-") or before == "-m"):
            break  # the program's own arguments begin
        plain += not word.startswith("-") and not before.startswith("-")
        before = word
    if not options:
        found.why = f"{name} runs code"


def _writes(name: str, args: list[str], globs: list[bool], found: Cargo) -> None:
    options = WRITES.get(name, ())
    for word, wild in zip(args, globs, strict=True):
        if is_option(word, options) or _clustered(word, options):
            found.why = found.why or f"{name} {word.partition('=')[0]} writes or deletes files"
            found.writes = True
        elif options and wild and word[:1] in "*?[-":
            found.why = found.why or f"{word} may expand to an option of {name} that writes"


def is_option(word: str, options: tuple[str, ...]) -> bool:
    """Whether a word is one of these options: alone, with `=value`, with a value glued on, or a long one cut short."""
    name = word.partition("=")[0]
    for option in options:
        if name == option or (option == "+" and word[:1] == "+"):
            return True
        if option.startswith("--"):
            if len(name) > 3 and option.startswith(name):  # getopt takes a long option cut short
                return True
        elif len(option) == 2 and option[0] == "-" and word.startswith(option):
            return True
    return False


def _clustered(word: str, options: tuple[str, ...]) -> bool:
    """Whether one of the single-letter options stands in a cluster such as `-lne`."""
    letters = {option[1] for option in options if len(option) == 2 and option[0] == "-"}
    return bool(re.fullmatch(r"-[A-Za-z]+", word)) and any(letter in word[1:] for letter in letters)
