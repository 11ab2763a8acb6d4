"""Shell commands: the one simple command that can be judged by patterns, or else everything in it that a deny rule may know."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from stead.agent.gate import lex
from stead.agent.gate.carry import Cargo, cargo
from stead.agent.gate.known import SHELLS

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser

_LONGEST = 65_536
_DEEPEST = 6
_MOST_PARTS = 400
_PLAIN_NODES = """
command command_name word number string string_content raw_string concatenation variable_assignment variable_name comment
"""
_SIMPLE = frozenset(_PLAIN_NODES.split())
_RESERVED_WORDS = """
if then elif else fi for in do done case esac while until select function coproc { } ! [[ ]]
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())
_UNKNOWN = "an expansion whose value is not known"
_WHY = {
    "list": "several commands in one line",
    "pipeline": "a pipe",
    "command_substitution": "a substitution",
    "process_substitution": "a substitution",
    "file_redirect": "a redirection",
    "heredoc_redirect": "a here-document",
    "herestring_redirect": "a here-string",
    "subshell": "a subshell",
    "function_definition": "a function",
    "simple_expansion": _UNKNOWN,
    "expansion": _UNKNOWN,
    "arithmetic_expansion": _UNKNOWN,
    "compound_statement": "a group",
    "negated_command": "a negation",
    "brace_expression": "braces that expand",
    "ERROR": "something that cannot be parsed",
}


@dataclass(slots=True)
class Part:
    """A command found in the text: its words without quotes, assignments in front. `carried`: found in another one's words."""

    words: list[str]
    assignments: int = 0
    globs: list[bool] = field(default_factory=list)
    carried: bool = False
    cargo: Cargo = field(default_factory=Cargo)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def command(self) -> list[str]:
        return self.words[self.assignments :]


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that the shell opens: `edit` for `>` and its kin, `read` for `<`."""

    tool: Literal["edit", "read"]
    path: str


@dataclass(slots=True)
class Script:
    """What was understood of a command text. `simple`: it is exactly one simple command, both readers agree on every word."""

    simple: bool = False
    why: str = ""
    parts: list[Part] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    cut: bool = False
    """There was more in it than was looked at."""
    texts: int = 0


def _parser() -> Parser:
    """A fresh one for each text: bash's scanner keeps state in its parser, and was once seen to crash on random input."""
    import tree_sitter

    return tree_sitter.Parser(_language())


@cache
def _language() -> Language:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def read(command: str, known: dict[str, str]) -> Script:
    """Understand a command. `known` has the values of variables (HOME, PWD) that are filled in where deny rules look."""
    script = Script()
    simple = _simple(command)
    if isinstance(simple, Part):
        script.simple = True
        script.parts.append(simple)
        script.why = simple.cargo.why or ""
        _unpack(simple, script, known, 0)
    else:
        script.why = simple
        _collect(command, script, known, 0, carried=False)
    return script


def _simple(command: str) -> Part | str:
    """The one simple command that the text is, or why it is not one."""
    if len(command) > _LONGEST:
        return "it is too long to be judged"
    top = lex.words(command)
    marks = {mark for word in top or () for mark in word.marks}
    if "odd" in marks or not _sound(command):
        return "characters that look like something else"
    root = _tree(command)
    nodes = list(_walk(root))
    for node in nodes:
        if node.type not in _SIMPLE and node.type in _WHY:
            return _WHY[node.type]
    body = [node for node in root.named_children if node.type != "comment"]
    if root.has_error or top is None:
        return "several commands or something that cannot be parsed"
    if len(body) != 1 or body[0].type != "command" or not all(node.type in _SIMPLE for node in nodes if node.id != root.id):
        return "control flow or a test" if body else "nothing to run"
    if marks & {"expand", "brace", "ansi"}:
        return _UNKNOWN
    part = _part(body[0], {}, carried=False)
    if part.words != [word.text for word in top] or len(part.words) != len(top):
        return "something that cannot be parsed"
    leading = (n for n, word in enumerate(top) if not re.match(r"[A-Za-z_][A-Za-z_0-9]*(\[[^]]*\])?\+?=", word.source))
    if part.assignments != next(leading, len(top)):
        return "something that cannot be parsed"
    first = top[part.assignments] if part.assignments < len(top) else None
    if first is not None and (first.source in _RESERVED or first.text[:1] == "%" or first.source[:1] == "~"):
        return "a word that the shell keeps for itself"
    if first is None or not first.text or "glob" in first.marks or re.search(r"\s", first.text):
        return "a name of a command that is not known"
    return part


def _sound(command: str) -> bool:
    """Whether the grammar may be given this text: characters that stand for nothing have made its scanner end the whole program."""
    odd = (char for char in command if not (char.isprintable() or char in "\t\n\r"))
    return not any(unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs") for char in odd)


def _tree(command: str) -> Node:
    return _parser().parse(command.encode("utf-8", "replace")).root_node


def _walk(root: Node) -> Iterator[Node]:
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(reversed(node.named_children))


def _source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _fill(source: str, known: dict[str, str]) -> str:
    """The source of a word with the variables whose value is known (or always nothing) filled in."""
    for name, value in known.items():
        source = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", lambda _, value=value: value, source)  # type: ignore[misc]
    return re.sub(r"\$(?:[@*1-9]|\{[@*1-9]\})", "", source) if known else source


def _texts(source: str, known: dict[str, str]) -> list[tuple[str, bool]]:
    """The words that a word's source becomes, with whether each has wildcards. Without `known` nothing is expanded."""
    out: list[tuple[str, bool]] = []
    for item in lex.braces(_fill(source, known)) if known else [source]:
        found = lex.words(item)
        if found is None:
            out.append((item.replace('"', "").replace("'", "").replace("\\", ""), False))
        else:
            out.extend((word.text, "glob" in word.marks) for word in found)
    return out


def _part(node: Node, known: dict[str, str], *, carried: bool) -> Part:
    part = Part([], carried=carried)
    extra: list[Node] = []
    redirected = node.parent if node.parent is not None and node.parent.type == "redirected_statement" else None
    for redirect in redirected.named_children if redirected else ():
        # The grammar gives words behind a redirection (`ls > x y`) to the redirection; they are arguments of the command.
        extra += redirect.children_by_field_name("destination")[1:] + redirect.children_by_field_name("argument")
    for child in [*node.named_children, *extra]:
        if child.type in ("file_redirect", "heredoc_redirect", "herestring_redirect", "comment"):
            continue
        for text, wild in _texts(_source(child), known):
            part.words.append(text)
            part.globs.append(wild)
        if child.type == "variable_assignment" and len(part.words) == part.assignments + 1:
            part.assignments += 1
    part.cargo = cargo(part.command, part.globs[part.assignments :])
    return part


def _collect(command: str, script: Script, known: dict[str, str], depth: int, *, carried: bool) -> None:
    """Every command and redirection in the text, also in substitutions, functions and texts given to a shell."""
    script.texts += 1
    if depth > _DEEPEST or len(script.parts) > _MOST_PARTS or script.texts > _MOST_PARTS:
        script.cut = True
        return
    if not command.strip():
        return
    # The grammar reads a line that begins with a backslash as part of the line before it; the shell does not.
    command = re.sub(r"(\n[ \t]*)\\(?=\w)", r"\1", command)
    first = len(script.parts)
    bodies: list[str] = []
    script.cut = script.cut or len(command) > _LONGEST
    failed = len(command) > _LONGEST or not _sound(command)
    if not failed:
        root = _tree(command)
        failed = root.has_error
        for node in _walk(root):
            _visit(node, script, known, bodies, carried)
    plain = "".join(" " if not char.isascii() and char.isspace() else char for char in command[:_LONGEST])
    if failed or plain != command or "\r" in command:
        _rough(plain, script, known)
    mine = script.parts[first:]
    if any(_listens(part) for part in mine):  # text that reaches a shell through a pipe or a here-document is a script
        bodies += [" ".join(part.command[1:]) for part in mine if part.command[:1] and part.command[0] in ("echo", "printf")]
        for body in bodies:
            _collect(body, script, known, depth + 1, carried=True)
    for part in mine:
        _unpack(part, script, known, depth)


def _visit(node: Node, script: Script, known: dict[str, str], bodies: list[str], carried: bool) -> None:
    if len(script.parts) > _MOST_PARTS:
        return
    if node.type in ("command", "declaration_command", "unset_command"):
        part = _part(node, known, carried=carried)
        if node.type != "command":  # the grammar hides the name of export, declare, unset in an unnamed node
            part.words.insert(0, _source(node).split(None, 1)[0])
            part.globs.insert(0, False)
            part.assignments = 0
        if part.words:
            script.parts.append(part)
    elif node.type == "file_redirect":
        _redirect(node, script, known)
    elif node.type in ("heredoc_body", "herestring_redirect"):
        bodies.append(_source(node).lstrip("<").strip().strip("\"'"))


def _redirect(node: Node, script: Script, known: dict[str, str]) -> None:
    target = node.child_by_field_name("destination")
    operator = next((child.type for child in node.children if not child.is_named), ">")
    if target is None or target.type == "process_substitution":
        return
    for text, _ in _texts(_source(target), known)[:1]:
        copies = operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", text)
        if copies or text in ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"):
            continue
        script.redirects.append(Redirect("read" if operator in ("<", "<&") else "edit", text))


def _rough(command: str, script: Script, known: dict[str, str]) -> None:
    """Cut a text that the grammar cannot read at everything that may begin a command: only deny rules look at the pieces."""
    command = re.sub(r"\{([^{}\s]*,[^{}\s]*)\}", lambda found: found[1].replace(",", " "), command)
    for piece in re.split(r"[;&|\n\r(){}`<>]+|\$\(|\b(?:then|do|else|if|while|until)\b", command):
        words = [word for item in piece.split() for word, _ in _texts(item, known)]
        if words and len(script.parts) <= _MOST_PARTS:
            ahead = next((n for n, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word)), len(words))
            globs = [False] * len(words)
            script.parts.append(Part(words, ahead, globs, carried=True, cargo=cargo(words[ahead:], globs[ahead:])))


def _listens(part: Part) -> bool:
    name = part.command[0].rsplit("/", 1)[-1] if part.command else ""
    return name in SHELLS or name in ("ssh", "su", "sudo", "source", ".", "eval", "xargs", "parallel", "docker", "env", "busybox")


def _unpack(part: Part, script: Script, known: dict[str, str], depth: int) -> None:
    """Add what a command carries in its words."""
    if depth > _DEEPEST:
        script.cut = True
        return
    for words in part.cargo.commands:
        if words and len(script.parts) <= _MOST_PARTS:
            inner = Part(words, 0, [False] * len(words), carried=True)
            inner.cargo = cargo(words, inner.globs)
            script.parts.append(inner)
            _unpack(inner, script, known, depth + 1)
    for text in part.cargo.scripts:
        _collect(text, script, known, depth + 1, carried=True)
