from __future__ import annotations

import os
from pathlib import Path

import pytest

from stead.core.errors import SteadError
from stead.domain import people
from stead.domain.people import LOCAL, Person
from stead.store import Store


@pytest.fixture
def ada(store: Store) -> Person:
    return store.write(lambda tx: people.local_person(tx, name="Ada"))


def add(store: Store, id: str, login: str, *, by: str = LOCAL, super_admin: bool = False) -> Person:
    return store.write(lambda tx: people.add(tx, id=id, name="", login=login, by=by, super_admin=super_admin))


def everything(store: Store) -> str:
    """All that a query, a listener or an export may see: events and projections."""
    with store.view() as view:
        return repr(view.q("SELECT * FROM events")) + repr(store.dump())


def test_the_first_start_makes_one_super_admin_and_only_once(store: Store, ada: Person) -> None:
    assert (ada.id, ada.name, ada.login, ada.super_admin) == (LOCAL, "Ada", "local", True)
    assert store.write(lambda tx: people.local_person(tx, name="Bob")) == ada
    jobs = [store.submit(people.local_person) for _ in range(4)]
    assert {job.result() for job in jobs} == {ada}
    with store.view() as view:
        assert people.everyone(view) == [ada] and len(view.events()) == 1


def test_a_house_that_has_a_super_admin_gets_no_second_by_a_local_start(store: Store) -> None:
    store.write(lambda tx: tx.append("system", people.PersonAdded(person="p1", name="P", login="p", super_admin=True)))
    assert store.write(people.local_person).super_admin is False


def test_only_a_super_admin_makes_one(store: Store, ada: Person) -> None:
    plain = add(store, "p1", "bob")
    assert plain.super_admin is False and plain.name == "bob"
    for by in ("p1", "nobody", ""):
        with pytest.raises(SteadError):
            add(store, "p2", "eve", by=by, super_admin=True)
        with pytest.raises(SteadError):
            store.write(lambda tx, by=by: people.set_super_admin(tx, "p1", True, by=by))  # type: ignore[misc]
    assert add(store, "p3", "cy", super_admin=True).super_admin
    store.write(lambda tx: people.set_super_admin(tx, "p1", True, by="p3"))
    store.write(lambda tx: people.set_super_admin(tx, LOCAL, False, by="p1"))
    store.write(lambda tx: people.set_super_admin(tx, "p3", False, by="p1"))
    with pytest.raises(SteadError) as failed:
        store.write(lambda tx: people.set_super_admin(tx, "p1", False, by="p1"))
    assert failed.value.code == "conflict"
    with store.view() as view:
        assert [one.id for one in people.everyone(view) if one.super_admin] == ["p1"]


@pytest.mark.parametrize("login", ["bob", "BOB", "Bob ", "ｂｏｂ"])
def test_logins_that_look_the_same_are_the_same(store: Store, ada: Person, login: str) -> None:
    add(store, "p1", "Bob")
    with pytest.raises(SteadError) as failed:
        add(store, "p2", login)
    assert failed.value.code == "conflict"
    with store.view() as view:
        found = people.find(view, login.strip())
        assert found is not None and (found.id, found.login) == ("p1", "Bob")
        assert people.find(view, "bo") is None


@pytest.mark.parametrize("login", ["", " ", "a\nb"])
def test_a_login_is_a_text_on_one_line(store: Store, ada: Person, login: str) -> None:
    with pytest.raises(SteadError) as failed:
        add(store, "p1", login)
    assert failed.value.code == "usage"


def test_passwords_are_checked_and_shown_to_nobody(store: Store, ada: Person) -> None:
    hashed = people.hash_password("correct hörse")
    assert hashed.startswith("$argon2id$") and hashed != people.hash_password("correct hörse")
    assert people.verify_password(store, "local", "correct hörse") is None  # none is set yet
    store.write(lambda tx: people.set_password(tx, LOCAL, hashed))
    assert people.verify_password(store, "LOCAL", "correct ho\u0308rse") == ada  # the other form of the same letters
    for login, password in (("local", "Correct hörse"), ("local", ""), ("bob", "correct hörse"), ("", "")):
        assert people.verify_password(store, login, password) is None
    seen = everything(store) + repr(ada) + repr(ada.to_json())
    assert "argon2" not in seen and "correct" not in seen and hashed not in seen
    store.write(lambda tx: people.set_password(tx, LOCAL, people.hash_password("new")))
    assert people.verify_password(store, "local", "correct hörse") is None
    assert people.verify_password(store, "local", "new") == ada
    store.rebuild()
    assert people.verify_password(store, "local", "new") == ada


def test_an_unknown_login_costs_as_much_as_a_wrong_password(store: Store, ada: Person) -> None:
    store.write(lambda tx: people.set_password(tx, LOCAL, people.hash_password("p")))

    def cpu(login: str) -> float:
        before = os.times()
        people.verify_password(store, login, "wrong")
        after = os.times()
        return after.user + after.system - before.user - before.system

    known, unknown = (min(cpu(login) for _ in range(3)) for login in ("local", "nobody"))
    assert known * 0.5 <= unknown <= known * 2


@pytest.mark.parametrize("password", ["", "x" * 1025])
def test_impossible_passwords(store: Store, password: str) -> None:
    with pytest.raises(SteadError) as failed:
        people.hash_password(password)
    assert failed.value.code == "usage"


def test_unknown_people(store: Store, tmp_path: Path) -> None:
    for job in (
        lambda tx: people.get(tx, "x"),
        lambda tx: people.set_password(tx, "x", "$argon2id$"),
        lambda tx: people.rename(tx, "x", "y"),
    ):
        with pytest.raises(SteadError) as failed:
            store.write(job)
        assert failed.value.code == "not_found"
