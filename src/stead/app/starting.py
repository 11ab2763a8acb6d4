"""From what a caller wants to a run that can begin: which folder, model, limits and rules hold for this prompt.

Nothing is stored here and nothing is sent; whatever cannot work is refused first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
    """What a caller asked for; None where they left it to the settings. `here`: this process is to work on it."""

    session: str | None
    project: str | Path | None
    agent: str | None
    model: str | None
    key: str | None
    max_steps: int | None
    max_cost: float | None
    rules: Sequence[Rule]
    on_ask: Asker
    here: bool = True

    @classmethod
    def of(cls, session: str | None, *, here: bool, **wish: Any) -> Wish:
        """Like the keyword arguments of `Stead.prompt`: what is left out is left to the settings."""
        names = ("project", "agent", "model", "key", "max_steps", "max_cost")
        if unknown := set(wish) - {*names, "rules", "on_ask"}:
            raise TypeError(f"unexpected argument {sorted(unknown)[0]!r}")
        given = {name: wish.get(name) for name in names}
        return cls(session, rules=wish.get("rules", ()), on_ask=wish.get("on_ask", "deny"), here=here, **given)


@dataclass(frozen=True, slots=True)
class Terms:
    """What was agreed for a run and is stored with it, so that any process can work on it, now or after a restart. `on_ask` is a
    policy, or `person`: whoever sits where the run is worked on. What a person granted for a session is not among `rules`: it ends
    with the process that it was granted in (`granted`)."""

    rules: tuple[tuple[str, str, str, str], ...]
    on_ask: str
    max_cost: float | None
    mode: str
    language: str | None

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "rules": [list(rule) for rule in self.rules]}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Terms:
        """Of a run that an older version began, what it left out is as strict as can be."""
        rules = tuple((str(text), str(action), str(layer), str(origin)) for text, action, layer, origin in stored.get("rules", ()))
        return cls(
            rules, stored.get("on_ask", "deny"), stored.get("max_cost"), stored.get("mode", "manual"), stored.get("language")
        )


def granted(rules: Sequence[Rule]) -> list[Rule]:
    """Those of the rules that a person granted for a session: they live in the process, and no other goes by them."""
    return [rule for rule in rules if rule.layer == "session" and rule.action == "allow"]


def stored(rule: Rule) -> tuple[str, str, str, str]:
    """A rule as the terms of a run hold it."""
    return rule.text, rule.action, rule.layer, rule.origin


def plan(house: Stead, wish: Wish) -> tuple[Start, Connection]:
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
        old = sessions.in_use(view, wish.session) if wish.session else None
        folder, known = _folder(view, old, wish.project)
        file = house.user_file()
        values = settings.effective(
            view, project=known.id if known else None, session=wish.session, file_layer=file.settings, flags=flags
        )
        _refuse_unbuilt(file, values)
        agent = _agent(wish.agent or (old.agent if old else None) or values["agent"].value)
        reference = wish.model or (old.model if old else None) or values["model"].value or default_reference(view, house.environ)
        connection = _connect(house, view, reference, Path(folder.folder), values)
    new = house.store.ids.new
    terms = Terms(
        rules=tuple(stored(rule) for rule in wish.rules if rule not in granted(wish.rules)),
        on_ask="person" if callable(wish.on_ask) else wish.on_ask,
        max_cost=values["max_cost"].value,
        mode=values["mode"].value,
        language=values["language"].value,
    )
    start = Start(
        session=wish.session,
        folder=folder,
        known=known,
        agent=agent,
        model=reference,
        max_steps=wish.max_steps or (old.max_steps if old else None) or values["max_steps"].value or DEFAULT_STEPS,
        key=wish.key,
        owner=house.owner() if wish.here else None,
        ids=(new(), new(), new()),
        instructions=projects.find_instructions(folder.folder),
        terms=terms.to_json(),
    )
    return start, connection


def loop_of(
    house: Stead, run: runs.Run, *, ask: Asker | None = None, grants: Sequence[Rule] = (), connection: Connection | None = None
) -> Loop:
    """The loop that works on a run, made from what is stored of it.

    `grants` are rules that hold in this process alone. `ask` says how a person is asked here (None: as was agreed when it began,
    and where that was by a person, nobody can be); `connection` spares making it anew. Raises as `plan` does where something that
    held then holds no more.
    """
    with house.store.view() as view:
        terms = Terms.from_json(runs.terms(view, run))
        session = sessions.get(view, run.session)
        project = projects.get(view, session.project)
        root = Path(projects.identify(project.folder).folder)
        values = settings.effective(view, project=project.id, session=run.session, file_layer=house.user_file().settings)
        if connection is None:
            connection = _connect(house, view, run.model, root, values)
        secrets = known_secret_values(view, house.secrets, house.environ)
    policy: Asker = ask or ("deny" if terms.on_ask == "person" else cast(Asker, terms.on_ask))
    rules = [parse(text, cast(Any, action), cast(Any, layer), origin) for text, action, layer, origin in terms.rules]
    return Loop(
        store=house.store,
        run=run,
        root=root,
        data_dir=house.data.resolve(),
        connection=connection,
        rules=[*rules, *grants, *_mode_rules(terms.mode)],
        on_ask=policy,
        publish=house.publish,
        limits=Limits(run.max_steps, terms.max_cost),
        environ=clean_environ(house.environ, secrets),
        jitter=lambda: secret_bytes(1)[0] / 255,
        home=Path.home(),
        mode=terms.mode,
        language=terms.language,
        tree=house.tree(root, values),
        most_bytes=values["undo.max_file_bytes"].value,
    )


def _connect(house: Stead, view: Reads, reference: str, root: Path, values: dict[str, Effective]) -> Connection:
    return connect(
        view,
        reference,
        root=root,
        environ=house.environ,
        vault=house.secrets,
        models=house.models,
        window=settings.context_window(values, reference),
    )


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
