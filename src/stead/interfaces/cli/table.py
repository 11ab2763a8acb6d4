"""The commands: name, one line for the list, and where the function is. Nothing here is imported before the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, by the function `module:name` below `stead.interfaces.cli`; or a group of such, and the one of them that runs when
    none is named."""

    help: str
    where: str = ""
    below: Mapping[str, Entry] | None = None
    default: str = ""


COMMANDS: Mapping[str, Entry] = {
    "run": Entry("Give the agent a prompt and see it through.", "run:run"),
    "chat": Entry("Talk with the agent, line by line.", "chat:chat"),
    "sessions": Entry(
        "See and keep sessions.",
        below={
            "list": Entry("List sessions, the last used first.", "sessions_list:list_sessions"),
            "show": Entry("Show a session's messages.", "sessions_show:show"),
            "rename": Entry("Give a session another title.", "sessions_change:rename"),
            "archive": Entry("Put a session out of the way; it stays complete.", "sessions_change:archive"),
            "unarchive": Entry("Bring an archived session back.", "sessions_change:unarchive"),
            "delete": Entry("Move a session to the trash, or with --now delete it for good.", "sessions_change:delete"),
            "restore": Entry("Take a session out of the trash.", "sessions_change:restore"),
            "fork": Entry("Begin a session with the messages of another.", "sessions_fork:fork"),
            "stop": Entry("End a session's run, in whichever process it works.", "sessions_change:stop"),
        },
    ),
    "inbox": Entry(
        "See what waits for you, and answer it.",
        below={
            "list": Entry("List open questions and approvals.", "inbox:list_inbox"),
            "answer": Entry("Answer an open question or approval.", "inbox:answer"),
        },
        default="list",
    ),
    "queue": Entry(
        "See and change the prompts that wait for their turn.",
        below={
            "list": Entry("List the prompts that wait.", "queue:list_queue"),
            "edit": Entry("Change what a waiting prompt says.", "queue:edit"),
            "move": Entry("Give a waiting prompt another place.", "queue:move"),
            "send": Entry("Send a prompt now: into the run at work, or as the next.", "queue:send"),
            "remove": Entry("Take a waiting prompt back.", "queue:remove"),
            "resume": Entry("Let the held prompts of a session go on.", "queue:resume"),
        },
        default="list",
    ),
    "project": Entry(
        "See projects, and bring a moved one's sessions along.",
        below={
            "list": Entry("List the projects, the last opened first.", "project:list_projects"),
            "relink": Entry("Say that a project's folder now lies here.", "project:relink"),
        },
    ),
    "diff": Entry("Show what a session changed in files.", "diff:diff"),
    "undo": Entry("Take back what the agent did: files, the conversation, or both.", "undo:undo"),
    "redo": Entry("Take back an undo.", "undo:redo"),
    "keep": Entry("Agree with what a session changed.", "undo:keep"),
    "usage": Entry("Show tokens and cost.", "usage:show_usage"),
    "config": Entry(
        "See and change settings.",
        below={
            "get": Entry("Print the value that holds.", "config:get"),
            "set": Entry("Set a value.", "config:set_value"),
            "unset": Entry("Take a value back, so that the next layer's holds.", "config:unset"),
            "list": Entry("List all settings.", "config:list_values"),
        },
    ),
    "provider": Entry(
        "Set up where models are reached.",
        below={
            "add": Entry("Add a provider, or change one.", "provider:add"),
            "list": Entry("List the providers.", "provider:list_providers"),
            "models": Entry("List a provider's models.", "provider_ask:models"),
            "test": Entry("See whether a provider answers.", "provider_ask:test"),
            "remove": Entry("Remove a provider and its key.", "provider:remove"),
        },
    ),
    "storage": Entry("Show what takes room on the disk, or print a blob.", "storage:storage"),
    "doctor": Entry("Look whether the store is as it should be.", "doctor:doctor"),
    "demo": Entry("Watch a scripted session at work; needs no key and no network.", "demo:demo"),
    "completion": Entry("Print the completion script for a shell.", "completion:completion"),
}
