"""The beginning of a run: what a person may send, and the one job that stores it and begins the work or puts it into the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stead.core.errors import SteadError
from stead.core.parts import issue
from stead.domain import people, projects, queue, rewinds, runs, sessions
from stead.domain.projects import Project
from stead.store.blobs import Packed
from stead.store.log import Tx


@dataclass(frozen=True, slots=True)
class Begun:
    """What became of a prompt: the id of its run, the run itself (None: it waits in the queue), whether this call made it."""

    id: str
    session: str
    run: runs.Run | None
    fresh: bool


@dataclass(frozen=True, slots=True)
class Start:
    """What the job of a new prompt needs to know. `ids` are fresh ones for the project, the session and the run; `owner` is the
    process that works on it, None to leave it to whoever works for the store; `terms` are what else was agreed, as JSON."""

    session: str | None
    folder: projects.Identity
    known: Project | None
    agent: str
    model: str
    max_steps: int
    key: str | None
    owner: str | None
    ids: tuple[str, str, str]
    instructions: Sequence[projects.Instruction]
    terms: dict[str, Any]

    def job(self, tx: Tx, packed: Packed) -> Begun:
        """Store the prompt and begin its run; or, behind a run that has not ended, queue it."""
        if self.session is not None and self.key is not None and (known := self._known(tx, self.session, self.key)):
            return known
        if self.session is not None:
            rewinds.refuse_under_way(tx, self.session)
            sessions.in_use(tx, self.session)  # again: it may have gone into the trash while this was prepared
        person = people.local_person(tx)
        project = projects.open_project(
            tx, self.folder, id=self.ids[0], found=self.known, owner=person.id, instructions=self.instructions
        )
        parts = tx.unpack(packed)
        session = self.session
        if session is None:
            texts = [part["text"] for part in parts if part["type"] == "text"]
            title = next((text if isinstance(text, str) else text["head"] for text in texts), "")
            session = sessions.create(tx, self.ids[1], project, title=title, agent=self.agent, model=self.model)
        about: dict[str, Any] = {"agent": self.agent, "model": self.model, "project": project, "max_steps": self.max_steps}
        run, who = self.ids[2], cast(Any, {"author": person.id, "key": self.key})
        if self.owner is None or runs.active(tx, session) is not None or queue.head(tx, session) is not None:
            queue.add(tx, run, session, parts, {**about, **self.terms}, owner=self.owner, **who)
            return Begun(run, session, None, True)
        sessions.change(tx, session, model=self.model, agent=self.agent)
        begun = runs.start(tx, run, session, parts, owner=self.owner, terms=self.terms, **about, **who)
        return Begun(run, session, begun, True)

    def _known(self, tx: Tx, session: str, key: str) -> Begun | None:
        if run := runs.with_key(tx, session, key):
            return Begun(run.id, session, run, False)
        waiting = queue.with_key(tx, session, key)
        return Begun(waiting.id, session, None, False) if waiting else None


def begin_queued(tx: Tx, prompt: queue.Prompt, owner: str) -> runs.Run | None:
    """Begin the run of a queued prompt under `owner`; None when it is not its turn, or something is being taken back there."""
    if rewinds.open_in(tx, prompt.session) is not None:
        return None
    return queue.begin(tx, prompt, owner)


def prompt_parts(parts: str | Sequence[Any]) -> list[dict[str, Any]]:
    """What a person may send: texts and files, not all of them empty."""
    listed: Any = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    if not isinstance(listed, Sequence) or not all(isinstance(part, Mapping) for part in listed):
        raise SteadError("usage", "A prompt is a text, or a list of parts: objects with a `type`.")
    given = [dict(part) for part in listed]
    for part in given:
        if part.get("type") not in ("text", "file"):
            raise SteadError("usage", f"A prompt is made of text and files, not of {part.get('type')!r}.")
        if found := issue(part):
            raise SteadError("usage", f"A part of the prompt is wrong: {found['path']} is {found['message']}.")
    if not any(part["type"] == "file" or part["text"].strip() for part in given):
        raise SteadError("usage", "The prompt is empty.")
    return given
