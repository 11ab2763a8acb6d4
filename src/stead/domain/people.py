"""People: who may use this house. A local house has one person, made on first use; a team adds more.

A password is kept as a slow salted hash (Argon2id) in a table of its own: it is in no event and in no query's result. Hashing
and checking take about a tenth of a second and are done outside of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.store.database import Reads, Row
from stead.store.feature import Feature
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.store.store import Store

LOCAL = "local"
"""The id of the one person of a local house."""
LOCAL_ACTOR = f"person:{LOCAL}"
"""That person as the actor of a job: whom the log names for what they did."""

_LONGEST_PASSWORD = 1024
_ITERATIONS, _LANES, _MEMORY_KIB = 3, 4, 64 << 10

# The hash of a random text that nobody kept, made with the figures above: an unknown login takes as long as a wrong password.
_NOBODY = "$argon2id$v=19$m=65536,t=3,p=4$bXA1vdApRqPFdYyzy2MyJw$EOfpnnSyOvk4gqVF0R4J9E0PMtIN+UFVTIY7gIaU4Aw"


@event("person.added")
class PersonAdded(Fact):
    person: str
    name: str
    login: str
    super_admin: bool


@event("person.changed")
class PersonChanged(Fact):
    """Only the changed fields: name, super_admin."""

    person: str
    values: dict[str, Any]


@event("person.password_set")
class PasswordSet(Fact):
    """That it was set, never what it is."""

    person: str


FEATURE = Feature(
    "people",
    tables={
        "people": "id TEXT PRIMARY KEY, name TEXT NOT NULL, login TEXT NOT NULL, login_key TEXT NOT NULL UNIQUE,"
        " super_admin INTEGER NOT NULL, created BIGINT NOT NULL",
    },
    kept={"passwords": "person TEXT PRIMARY KEY, hash TEXT NOT NULL"},
)

_COLUMNS = "id, name, login, super_admin, created"


# --- projectors ---------------------------------------------------------------------------------------------------------------


@FEATURE.projects(PersonAdded)
def _added(tx: Tx, e: Event[PersonAdded]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO people(id, name, login, login_key, super_admin, created) VALUES(?,?,?,?,?,?)",
        *(d.person, d.name, d.login, _key(d.login), int(d.super_admin), e.ts),
    )


@FEATURE.projects(PersonChanged)
def _changed(tx: Tx, e: Event[PersonChanged]) -> None:
    if "name" in e.data.values:
        tx.q("UPDATE people SET name=? WHERE id=?", e.data.values["name"], e.data.person)
    if "super_admin" in e.data.values:
        tx.q("UPDATE people SET super_admin=? WHERE id=?", int(e.data.values["super_admin"]), e.data.person)


def _key(login: str) -> str:
    """Logins that look the same are the same."""
    if login.isascii():
        return login.lower()
    from unicodedata import normalize

    return normalize("NFKC", normalize("NFKC", login).casefold())


# --- queries ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Person:
    """A person. `created` is milliseconds in UTC."""

    id: str
    name: str
    login: str
    super_admin: bool
    created: int

    def to_json(self) -> dict[str, Any]:
        """The person as every surface shows them."""
        from stead.core.clock import rfc3339

        shown = {"id": self.id, "name": self.name, "login": self.login}
        return {**shown, "super_admin": self.super_admin, "created": rfc3339(self.created)}


def get(view: Reads, person: str) -> Person:
    """The person with this id; raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM people WHERE id=?", person)
    if row is None:
        raise SteadError("not_found", f"There is no person {person}.")
    return _person(row)


def find(view: Reads, login: str) -> Person | None:
    """The person with this login, whatever its letter case; None when there is none."""
    row = view.one(f"SELECT {_COLUMNS} FROM people WHERE login_key=?", _key(login))
    return _person(row) if row else None


def everyone(view: Reads) -> list[Person]:
    """All people, in the order in which they came."""
    return [_person(row) for row in view.q(f"SELECT {_COLUMNS} FROM people ORDER BY created, id")]


def _person(row: Row) -> Person:
    return Person(row[0], row[1], row[2], bool(row[3]), row[4])


# --- commands -----------------------------------------------------------------------------------------------------------------


def local_person(tx: Tx, *, name: str = "", login: str = LOCAL) -> Person:
    """The one person of a local house, made on first use as its super-admin. Idempotent, also between processes."""
    if tx.one("SELECT 1 FROM people WHERE id=?", LOCAL) is None:
        # Only the first start of a house makes a super-admin out of nobody's word (F438).
        first = tx.one("SELECT 1 FROM people WHERE super_admin=1") is None
        tx.append("system", PersonAdded(person=LOCAL, name=name.strip() or login, login=login, super_admin=first))
    return get(tx, LOCAL)


def add(tx: Tx, *, id: str, name: str, login: str, by: str, super_admin: bool = False) -> Person:
    """Add a person in the name of `by`. Raises `conflict` for a login that is taken, `usage` for an empty one and for a
    super-admin made by somebody who is none."""
    login, name = login.strip(), name.strip()
    if not login or not login.isprintable():
        raise SteadError("usage", "A login is a text on one line.")
    if find(tx, login) is not None:
        raise SteadError("conflict", f"The login {login!r} is taken.", details={"login": login})
    if super_admin:
        _need_super_admin(tx, by)
    tx.append("system", PersonAdded(person=id, name=name or login, login=login, super_admin=super_admin))
    return get(tx, id)


def rename(tx: Tx, person: str, name: str) -> None:
    """Give a person another name to be shown by. Raises `not_found`, `usage` for an empty one."""
    if not name.strip():
        raise SteadError("usage", "A name cannot be empty.")
    tx.append("system", PersonChanged(person=get(tx, person).id, values={"name": name.strip()}))


def set_super_admin(tx: Tx, person: str, value: bool, *, by: str) -> None:
    """Give or take the rights of a super-admin; only one may do so, and the last one stays (`conflict`)."""
    _need_super_admin(tx, by)
    before = get(tx, person)
    if before.super_admin == value:
        return
    if not value and tx.q("SELECT count(*) FROM people WHERE super_admin=1")[0][0] == 1:
        raise SteadError("conflict", f"{before.name} is the last super-admin.", hint="Make another one first.")
    tx.append("system", PersonChanged(person=person, values={"super_admin": value}))


def set_password(tx: Tx, person: str, hashed: str) -> None:
    """Keep what `hash_password` made as the person's password; the one before is gone. Raises `not_found`."""
    assert hashed.startswith("$argon2id$"), "a password is never stored as it is"
    get(tx, person)
    tx.append("system", PasswordSet(person=person))
    tx.q("INSERT INTO passwords(person, hash) VALUES(?,?) ON CONFLICT(person) DO UPDATE SET hash=excluded.hash", person, hashed)


def _need_super_admin(tx: Tx, by: str) -> None:
    row = tx.one("SELECT super_admin FROM people WHERE id=?", by)
    if row is None or not row[0]:
        raise SteadError("usage", "Only a super-admin may make or unmake a super-admin.")


# --- passwords ----------------------------------------------------------------------------------------------------------------


def hash_password(password: str) -> str:
    """The slow salted hash of a password, for `set_password`. Raises `usage` for an empty or endless one."""
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    from stead.core.ids import secret_bytes

    if not password or len(password) > _LONGEST_PASSWORD:
        raise SteadError("usage", f"A password has 1 to {_LONGEST_PASSWORD:,} characters.")
    slow = Argon2id(salt=secret_bytes(16), length=32, iterations=_ITERATIONS, lanes=_LANES, memory_cost=_MEMORY_KIB)
    return slow.derive_phc_encoded(_bytes(password))


def verify_password(store: Store, login: str, password: str) -> Person | None:
    """The person whose login and password these are, else None. Takes the same time whether or not the login is known."""
    from cryptography.exceptions import InvalidKey
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    with store.view() as view:
        person = find(view, login)
        row = view.one("SELECT hash FROM passwords WHERE person=?", person.id if person else "")
    try:
        Argon2id.verify_phc_encoded(_bytes(password[: _LONGEST_PASSWORD + 1]), row[0] if row else _NOBODY)
    except InvalidKey:
        return None
    return person if row else None


def _bytes(password: str) -> bytes:
    """A password as bytes: the same letters typed on another system are the same password."""
    from unicodedata import normalize

    return normalize("NFC", password).encode("utf-8", "surrogatepass")
