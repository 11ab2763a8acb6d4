"""From what a caller wants to a run that can begin: which folder, model, limits and rules hold for this prompt.

Nothing is stored here and nothing is sent; whatever cannot work is refused first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stead.agent.begin import Start
from stead.agent.calls import Asker
from stead.agent.connect import Connection, connect, default_reference
from stead.agent.gate import Rule, parse
from stead.agent.loop import Limits, Loop
from stead.agent.tools.environ import clean_environ
from stead.config.layers import UserFile
from stead.core.errors import SteadError
from stead.core.ids import secret_bytes
from stead.domain import projects, runs, sessions, settings
from stead.domain.projects import Project
from stead.domain.providers.keys import known_secret_values
from stead.domain.settings import Effective
from stead.store.database import Reads

if TYPE_CHECKING:
    from stead.app.house import Stead

DEFAULT_AGENT = "build"
DEFAULT_STEPS = 100
POLICIES = ("deny", "allow", "wait")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asked for; None where they left it to the settings."""

    session: str | None
    project: str | Path | None
    agent: str | None
    model: str | None
    key: str | None
    max_steps: int | None
    max_cost: float | None
    rules: Sequence[Rule]
    on_ask: Asker


@dataclass(frozen=True, slots=True)
class Plan:
    """What holds for the prompt."""

    house: Stead
    wish: Wish
    start: Start
    folder: Path
    connection: Connection
    values: dict[str, Effective]
    secrets: list[str]

    def loop(self, run: runs.Run) -> Loop:
        """The loop that works on `run`."""
        house = self.house
        return Loop(
            store=house.store,
            run=run,
            root=self.folder,
            data_dir=house.data.resolve(),
            connection=self.connection,
            rules=[*self.wish.rules, *_mode_rules(self.values["mode"].value)],
            on_ask=self.wish.on_ask,
            publish=house.publish,
            limits=Limits(run.max_steps, self.values["max_cost"].value),
            environ=clean_environ(house.environ, self.secrets),
            jitter=lambda: secret_bytes(1)[0] / 255,
            home=Path.home(),
            mode=self.values["mode"].value,
            language=self.values["language"].value,
        )


def plan(house: Stead, wish: Wish) -> Plan:
    """Decide what holds for a prompt. Raises `usage`, `not_found`, `project_missing`, `no_key`, `script_invalid`."""
    flags = {"model": wish.model, "agent": wish.agent, "max_steps": wish.max_steps, "max_cost": wish.max_cost}
    for name, value in flags.items():
        if value is not None:
            settings.check(name, value)
    if not callable(wish.on_ask) and wish.on_ask not in POLICIES:
        raise SteadError("usage", f"on_ask is {', '.join(POLICIES)} or a function, not {wish.on_ask!r}.")
    if any(not isinstance(rule, Rule) for rule in wish.rules):
        raise SteadError("usage", "A rule is made by `stead.agent.gate.parse(text, action, layer)`; a text alone is none.")
    with house.store.view() as view:
        old = sessions.get(view, wish.session) if wish.session else None
        folder, known = _folder(view, old, wish.project)
        file = house.user_file()
        values = settings.effective(
            view, project=known.id if known else None, session=wish.session, file_layer=file.settings, flags=flags
        )
        _refuse_unbuilt(file, values)
        agent = _agent(wish.agent or (old.agent if old else None) or values["agent"].value)
        reference = wish.model or (old.model if old else None) or values["model"].value or default_reference(view, house.environ)
        connection = connect(
            view,
            reference,
            root=Path(folder.folder),
            environ=house.environ,
            vault=house.secrets,
            models=house.models,
            window=settings.context_window(values, reference),
        )
        secrets = known_secret_values(view, house.secrets, house.environ)
    new = house.store.ids.new
    start = Start(
        session=wish.session,
        folder=folder,
        known=known,
        agent=agent,
        model=reference,
        max_steps=wish.max_steps or (old.max_steps if old else None) or values["max_steps"].value or DEFAULT_STEPS,
        key=wish.key,
        owner=house.owner(),
        ids=(new(), new(), new()),
        instructions=projects.find_instructions(folder.folder),
    )
    return Plan(house, wish, start, Path(folder.folder), connection, values, secrets)


def _folder(view: Reads, old: sessions.Session | None, project: str | Path | None) -> tuple[projects.Identity, Project | None]:
    if old is not None:
        known = projects.get(view, old.project)
        return projects.identify(known.folder), known
    if project is None:
        raise SteadError("usage", "A new session needs a project folder.")
    folder = projects.identify(project)
    return folder, projects.find(view, folder)


def _agent(name: str | None) -> str:
    """The agent's name, if there is one of that name: this version has the built-in one."""
    if name not in (None, DEFAULT_AGENT):
        raise SteadError("not_found", f"There is no agent {name!r}.", hint=f"This version has one: {DEFAULT_AGENT}.")
    return DEFAULT_AGENT


def _mode_rules(mode: str) -> list[Rule]:
    """What the session's mode adds: planning changes nothing, whatever else is allowed."""
    return [parse(tool, "deny", "session", "mode plan") for tool in ("edit", "bash")] if mode == "plan" else []


def _refuse_unbuilt(file: UserFile, values: dict[str, Effective]) -> None:
    """A wish for protection that cannot be kept is refused, not passed over."""
    for section in ("permissions", "hooks", "mcp"):
        if file.section(section) is not None:
            hint = f"Take it out of {file.path}; rules are given by --allow and --deny."
            raise SteadError("usage", f"config.toml has a section [{section}], which this version cannot keep.", hint=hint)
    if values["sandbox"].value == "on":
        hint = "`stead config unset sandbox` runs commands without one, after your approval."
        raise SteadError("usage", "The setting sandbox is on, and this version has no sandbox.", hint=hint)
