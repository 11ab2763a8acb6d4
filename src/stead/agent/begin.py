"""The beginning of a run: what a person may send, and the one job that stores it and begins the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stead.core.errors import SteadError
from stead.core.parts import issue
from stead.domain import people, projects, runs, sessions
from stead.domain.projects import Project
from stead.store.log import Tx


@dataclass(frozen=True, slots=True)
class Start:
    """What the job of a new prompt needs to know. `ids` are fresh ones for the project, the session and the run."""

    session: str | None
    folder: projects.Identity
    known: Project | None
    agent: str
    model: str
    max_steps: int
    key: str | None
    owner: str
    ids: tuple[str, str, str]
    instructions: Sequence[projects.Instruction]

    def job(self, tx: Tx, packed: Sequence[Any]) -> tuple[runs.Run, bool]:
        """Store the prompt and begin the run. True with a run that is new."""
        if self.session is not None and self.key is not None and (known := runs.with_key(tx, self.session, self.key)):
            return known, False
        person = people.local_person(tx)
        project = projects.open_project(
            tx, self.folder, id=self.ids[0], found=self.known, owner=person.id, instructions=self.instructions
        )
        parts = [tx.unpack(one) for one in packed]
        session = self.session
        if session is None:
            texts = [part["text"] for part in parts if part["type"] == "text"]
            title = next((text if isinstance(text, str) else text["head"] for text in texts), "")
            session = sessions.create(tx, self.ids[1], project, title=title, agent=self.agent, model=self.model)
        else:
            sessions.change(tx, session, model=self.model, agent=self.agent)
        run = runs.start(
            tx,
            self.ids[2],
            session,
            parts,
            agent=self.agent,
            model=self.model,
            owner=self.owner,
            project=project,
            max_steps=self.max_steps,
            author=person.id,
            key=self.key,
        )
        return run, run.id == self.ids[2]


def prompt_parts(parts: str | Sequence[Any]) -> list[dict[str, Any]]:
    """What a person may send: texts and files, not all of them empty."""
    listed: Sequence[Any] = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    given = [dict(part) for part in listed]
    for part in given:
        if part.get("type") not in ("text", "file"):
            raise SteadError("usage", f"A prompt is made of text and files, not of {part.get('type')!r}.")
        if found := issue(part):
            raise SteadError("usage", f"A part of the prompt is wrong: {found['path']} is {found['message']}.")
    if not any(part["type"] == "file" or part["text"].strip() for part in given):
        raise SteadError("usage", "The prompt is empty.")
    return given
