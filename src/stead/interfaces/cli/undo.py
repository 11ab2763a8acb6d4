"""`stead undo` and `stead redo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.domain import changes
from stead.domain.people import LOCAL_ACTOR
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Folder, Json
from stead.interfaces.cli.place import opened, session_named

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.app.undo import Plan, Result

Which = Annotated[str | None, typer.Argument(help="Which session; default: the one last used in this project.")]
Files = Annotated[bool, typer.Option("--files", help="Only files; the conversation stays.")]
Conversation = Annotated[bool, typer.Option("--conversation", help="Only the conversation; files stay.")]
Both = Annotated[bool, typer.Option("--both", help="Files and the conversation (the default).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it is meant.")]
Force = Annotated[
    list[str] | None,
    typer.Option("--force", metavar="PATH", help="Restore PATH whatever stands there now; that is kept, and redo brings it back."),
]
Merge = Annotated[bool, typer.Option("--merge", help="Where a file was changed since in other lines, merge.")]
Paths = Annotated[list[str] | None, typer.Option("--path", metavar="PATH", help="Only this file (repeatable).")]


def undo(
    session: Which = None,
    folder: Folder = ".",
    to: Annotated[str | None, typer.Option("--to", metavar="MESSAGE", help="Back to just before this user message.")] = None,
    message: Annotated[str | None, typer.Option("--message", metavar="ID", help="Only what this message changed.")] = None,
    call: Annotated[
        list[str] | None, typer.Option("--call", metavar="ID", help="Only what this tool call changed (repeatable).")
    ] = None,
    path: Paths = None,
    hunk: Annotated[
        list[str] | None, typer.Option("--hunk", metavar="ID", help="Of the one --path only this hunk of `diff` (repeatable).")
    ] = None,
    files: Files = False,
    conversation: Conversation = False,
    both: Both = False,
    merge: Merge = False,
    force: Force = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Take back what the agent did: the last user message with all after it, or what the options name."""
    from stead.app.undo import Wish, plan_undo

    if (to is not None) + (message is not None) + bool(call) > 1:
        raise SteadError("usage", "An undo is of one thing: --to, --message or --call.")
    if hunk and len(path or ()) != 1:
        raise SteadError("usage", "--hunk needs exactly one --path.")
    with opened() as house:
        found = _session(house, session, folder)
        names = _names(house, found, folder)
        paths = names(path)
        wish = Wish(
            to=to,
            message=message,
            calls=call or (),
            what=_what(files, conversation, both),
            paths=paths,
            hunks=dict.fromkeys(paths, hunk) if hunk else None,
            force=names(force),
            merge=merge,
        )
        return _carried(house, plan_undo(house, found, wish), dry_run=dry_run, yes=yes, json=json)


def redo(
    session: Which = None,
    folder: Folder = ".",
    path: Paths = None,
    files: Files = False,
    conversation: Conversation = False,
    both: Both = False,
    merge: Merge = False,
    force: Force = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Take back the newest undo that is not yet taken back: files are again what they were before it."""
    from stead.app.undo import Wish, plan_redo

    with opened() as house:
        found = _session(house, session, folder)
        names = _names(house, found, folder)
        wish = Wish(what=_what(files, conversation, both), paths=names(path), force=names(force), merge=merge)
        plan = plan_redo(house, found, wish)
        if plan.scope.closed:
            out.note("Something was said since the undo, so the conversation stays as it is.")
        return _carried(house, plan, dry_run=dry_run, yes=yes, json=json)


def keep(
    paths: Annotated[list[str] | None, typer.Argument(help="Which files; default: all that stand.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="SESSION", help="Which session; default: the last used here.")
    ] = None,
    hunk: Annotated[
        list[str] | None, typer.Option("--hunk", metavar="ID", help="Of the one file only this hunk of `diff` (repeatable).")
    ] = None,
    folder: Folder = ".",
    json: Json = False,
) -> int:
    """Agree with what a session changed: `diff` then shows it as kept. Files are not touched."""
    from stead.app.undo.review import keep as agree

    if hunk and len(paths or ()) != 1:
        raise SteadError("usage", "--hunk needs exactly one file.")
    with opened() as house:
        found = _session(house, session, folder)
        with house.store.view() as view:
            known = {row.path for row in changes.standing(view, found)}
        wanted = [name for name in _names(house, found, folder)(paths) if name in known]
        if paths and len(wanted) < len(paths):
            raise SteadError(
                "not_found", f"Not all of these files stand changed in session {found}.", hint="`stead diff` lists them."
            )
        kept = agree(house, found, wanted, chosen=dict.fromkeys(wanted, hunk) if hunk else None, by=LOCAL_ACTOR)
    if json:
        out.json({"kept": kept})
    else:
        out.note(f"Kept: {len(kept)} file{'s' if len(kept) != 1 else ''}.")
    return 0


def _session(house: Stead, session: str | None, folder: str) -> str:
    with house.store.view() as view:
        return session_named(view, session, folder).id


def _what(files: bool, conversation: bool, both: bool) -> Any:
    if files + conversation + both > 1:
        raise SteadError("usage", "One of --files, --conversation and --both.")
    return "files" if files else "conversation" if conversation else "both"


def _names(house: Stead, session: str, folder: str) -> Callable[[list[str] | None], list[str]]:
    """The function that gives paths as they are stored: those of `diff` as they are, others relative to `folder`."""
    from stead.agent.changing import stored_path
    from stead.app.undo import root_of

    with house.store.view() as view:
        root = root_of(view, session)

    def names(given: list[str] | None) -> list[str]:
        found: dict[str, None] = {}
        for text in given or ():
            found[text.removeprefix("./")] = None
            at = Path(os.path.abspath(os.path.join(folder, text)))
            found[stored_path(root, Path(os.path.realpath(at.parent)) / at.name)[0]] = None
        return list(found)

    return names


def _carried(house: Stead, plan: Plan, *, dry_run: bool, yes: bool, json: bool) -> int:
    """Show the plan, ask, carry it out, show what came of it. Gives the exit code."""
    from stead.app.undo import foreseen, undo

    told = foreseen(plan)
    if dry_run or plan.empty:
        if json:
            out.json(told.to_json(dry_run=dry_run))
        else:
            preview(house, plan, told)
        return _code(plan, told)
    if not yes and not plan.silent:
        preview(house, plan, told)
        confirm(plan)
    done = undo(house, plan, by=LOCAL_ACTOR)
    if json:
        out.json(done.to_json())
    else:
        tell(plan, done)
    return _code(plan, done)


def _code(plan: Plan, result: Result) -> int:
    """1 when a file that the agent changed was left as it is."""
    return 1 if result.conflicts or any(item.case == "uncovered" for item in plan.items) else 0


def preview(house: Stead, plan: Plan, told: Result) -> None:
    """What would be done, on stderr: each file with its lines, the messages that go, what is left alone and why."""
    from stead.app.undo.lines import counts

    if plan.silent and not told.conflicts and not told.not_covered:
        out.note(f"There is nothing to {plan.what}.")
        return
    for item in plan.items:
        if item.visible:
            added, gone = counts(house.store, item)
            was = f" (was {out.plain(item.origin)})" if item.origin else ""
            ran = " (changed while a command ran)" if item.found else ""
            out.err(f"  {_deed(item):9} {f'+{added} −{gone}':>12}  {out.plain(item.path)}{was}{ran}")
            if item.why:
                out.note(f"      {item.why}")
    if plan.messages:
        came = "come back" if plan.what == "redo" else "leave the conversation, and stay readable"
        out.err(f"  {len(plan.messages)} message{'s' if len(plan.messages) > 1 else ''} {came}")
    _left_alone(told)


def _deed(item: Any) -> str:
    if item.origin:
        return "rename"
    if item.want.state["kind"] == "absent":
        return "remove"
    return "create" if item.have["kind"] == "absent" else "restore"


def _left_alone(told: Result) -> None:
    for conflict in told.conflicts:
        out.err(f"  {out.style('left alone', 'yellow', sys.stderr)} {out.plain(conflict['path'])}: {out.plain(conflict['why'])}")
        if conflict.get("merge"):
            out.note("      --merge keeps both changes.")
        elif "blob" in conflict:
            out.note(f"      `stead storage blob {conflict['blob'][:12]}` prints what it was; --force takes that.")
    for one in told.not_covered:
        out.err(f"  not covered {out.plain(one['path'])}: {WHY.get(one['why'], one['why'])}")


WHY = {
    "too_large": "it is too large to be kept",
    "budget": "what it held before was not kept (see undo.capture_bytes)",
    "index_not_ready": "it was changed before stead had looked at the project",
    "outside": "it lies outside the project",
    "special": "it is no ordinary file",
}


def confirm(plan: Plan) -> None:
    """Ask whether it is meant; no is the default. Raises `confirm_required`."""
    from stead.interfaces.cli.asking import can_ask

    what = f"{plan.what.capitalize()} this?"
    if not can_ask():
        raise SteadError("confirm_required", "Nothing was done: nobody could be asked.", hint="-y says yes; --dry-run shows it.")
    out.say(f"{what} [y/N] > ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SteadError("confirm_required", "Nothing was done.")


def tell(plan: Plan, done: Result) -> None:
    """What came of it, on stderr."""
    files = len(done.restored)
    said = [f"{files} file{'s' if files != 1 else ''}"] if files else []
    said += [f"{len(done.messages)} message{'s' if len(done.messages) != 1 else ''}"] if done.messages else []
    if said:
        again = "" if plan.what == "redo" else " `stead redo` brings it back."
        out.note(f"{'Taken back' if plan.what == 'undo' else 'Brought back'}: {' and '.join(said)}.{again}")
    _left_alone(done)
    if done.conflicts and plan.what == "undo" and plan.scope.about is not None:
        which = f"--message {plan.scope.about}" if "." in plan.scope.about else f"--to {plan.scope.about} --files"
        out.note(f"`stead undo {plan.session} {which} --force PATH` restores one of them all the same.")
