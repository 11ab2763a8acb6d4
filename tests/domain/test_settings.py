from __future__ import annotations

from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.domain import settings
from stead.domain.settings import KEYS, Effective, Origin
from stead.store import Store


def change(store: Store, layer: Any = "global", id: str = "", removed: tuple[str, ...] = (), **values: Any) -> bool:
    return store.write(lambda tx: settings.change(tx, layer=layer, id=id, values=values, removed=removed))


def model(store: Store, **where: Any) -> tuple[Any, Origin]:
    with store.view() as view:
        found = settings.effective(view, **where)["model"]
    return found.value, found.origin


def test_the_nearest_layer_wins_and_says_so(store: Store) -> None:
    where: dict[str, Any] = {"project": "p", "session": "s"}
    assert model(store, **where) == (None, "default")
    where["file_layer"] = {"model": "a/file"}
    assert model(store, **where) == ("a/file", "file")
    for layer, id in (("global", ""), ("project", "p"), ("session", "s")):
        change(store, layer, id, model=f"a/{layer}")
        assert model(store, **where) == (f"a/{layer}", layer)
    assert model(store, **where, flags={"model": "a/flag", "agent": None}) == ("a/flag", "flag")
    assert model(store, project="other", session="other") == ("a/global", "global")
    for layer, id, rest in (("session", "s", "project"), ("project", "p", "global"), ("global", "", "file")):
        change(store, layer, id, removed=("model",))
        assert model(store, **where) == (f"a/{rest}", rest)


def test_only_changed_keys_are_stored(store: Store) -> None:
    assert change(store, model="a/b", max_steps=5)
    assert not change(store, model="a/b")  # nothing new: no event
    assert not change(store, removed=("agent",))
    assert change(store, model="a/b", max_steps=6, removed=("sandbox",))
    with store.view() as view:
        assert [event.data.values for event in view.events(stream="system")] == [{"model": "a/b", "max_steps": 5}, {"max_steps": 6}]
        assert settings.stored(view, "global") == {"model": "a/b", "max_steps": 6}
    assert change(store, removed=("model", "max_steps"))
    with store.view() as view:
        assert settings.stored(view, "global") == {}


def test_layers_are_events_of_their_own_streams(store: Store) -> None:
    for layer, id in (("global", ""), ("project", "p1"), ("session", "s1")):
        change(store, layer, id, language="de")
    with store.view() as view:
        assert [event.stream for event in view.events()] == ["system", "p1", "s1"]
    for layer, id in (("global", "x"), ("project", ""), ("session", "")):
        with pytest.raises(SteadError):
            change(store, layer, id, language="fr")


def test_a_deleted_sessions_settings_go_with_its_stream(store: Store) -> None:
    change(store, "session", "s1", language="de")
    change(store, "session", "s2", language="fr")

    def job(tx: Any) -> None:
        settings.forget(tx, "session", "s1")
        tx.forget_stream("s1")

    store.write(job)
    with store.view() as view:
        assert settings.stored(view, "session", "s1") == {} and settings.stored(view, "session", "s2") == {"language": "fr"}
    with pytest.raises(SteadError):
        change(store, "session", "s1", language="it")


def test_a_wrong_value_changes_nothing(store: Store) -> None:
    with pytest.raises(SteadError):
        change(store, model="a/b", max_steps=0)
    with store.view() as view:
        assert view.events() == [] and settings.stored(view, "global") == {}


def test_every_key_has_its_value(store: Store) -> None:
    with store.view() as view:
        found = settings.effective(view)
    assert found == {name: Effective(key.default, "default") for name, key in KEYS.items()}
    for name, key in KEYS.items():
        assert key.doc.endswith(".") and (key.kind == "choice") == bool(key.choices), name
        assert key.default is None or settings.check(name, key.default) == key.default


@pytest.mark.parametrize(
    ("name", "near"),
    [("modell", "model"), ("max-steps", "max_steps"), ("attachments.ondelete", "attachments.on_delete"), ("Timezone", "timezone")],
)
def test_an_unknown_key_names_the_near_ones(name: str, near: str) -> None:
    with pytest.raises(SteadError) as failed:
        settings.parse(name, "x")
    assert failed.value.code == "usage" and near in failed.value.to_json()["details"]["near"] and near in (failed.value.hint or "")


def test_an_unknown_key_without_a_near_one_lists_all(store: Store) -> None:
    with pytest.raises(SteadError) as failed:
        settings.key_of("qqqqqq")
    assert all(name in (failed.value.hint or "") for name in KEYS)
    with pytest.raises(SteadError):
        change(store, removed=("modle",))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_steps", "25", 25),
        ("max_steps", " 1_000 ", 1000),
        ("max_cost", "0.5", 0.5),
        ("max_cost", "$2", 2.0),
        ("max_cost", "0", 0.0),
        ("model", "ollama/qwen3", "ollama/qwen3"),
        ("small_model", "openrouter/a/b:free", "openrouter/a/b:free"),
        ("agent", "worker", "worker"),
        ("on_ask", "wait", "wait"),
        ("language", "Deutsch (Österreich)", "Deutsch (Österreich)"),
        ("timezone", "Europe/Vienna", "Europe/Vienna"),
        ("timezone", "UTC", "UTC"),
        ("attachments.on_delete", "keep", "keep"),
        ("context_window.ollama/qwen3:8b", "32768", 32768),
    ],
)
def test_values_from_a_command_line(name: str, text: str, value: Any) -> None:
    found = settings.parse(name, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_steps", "0"),
        ("max_steps", "-1"),
        ("max_steps", "1.5"),
        ("max_steps", "many"),
        ("max_steps", "٣"),
        ("max_steps", str(1 << 60)),
        ("max_cost", "-1"),
        ("max_cost", "nan"),
        ("max_cost", "inf"),
        ("max_cost", "cheap"),
        ("model", "qwen3"),
        ("model", "ollama/"),
        ("model", "/x"),
        ("agent", ""),
        ("agent", "a\nb"),
        ("on_ask", "Deny"),
        ("timezone", "Europe/Nowhere"),
        ("timezone", "../etc/passwd"),
        ("timezone", "/etc/localtime"),
        ("context_window", "1000"),
        ("context_window.qwen3", "1000"),
        ("context_window.ollama/qwen3", "big"),
    ],
)
def test_wrong_values_from_a_command_line(name: str, text: str) -> None:
    with pytest.raises(SteadError) as failed:
        settings.parse(name, text)
    assert failed.value.code == "usage" and name.split(".")[0] in failed.value.message


@pytest.mark.parametrize(
    ("name", "value"), [("max_steps", True), ("max_steps", "5"), ("max_cost", False), ("model", 5), ("agent", None), ("mode", [])]
)
def test_values_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(SteadError) as failed:
        settings.check(name, value)
    assert failed.value.code == "usage"


def test_the_window_of_a_model(store: Store) -> None:
    store.write(lambda tx: settings.change(tx, values={"context_window.a/b.c": 1000}))
    store.write(lambda tx: settings.change(tx, layer="project", id="p", values={"context_window.a/b.c": 2000}))
    with store.view() as view:
        near, far = settings.effective(view, project="p"), settings.effective(view)
    assert (settings.context_window(near, "a/b.c"), settings.context_window(far, "a/b.c")) == (2000, 1000)
    assert settings.context_window(near, "a/b") is None


def test_a_key_of_a_later_version_is_passed_over(store: Store) -> None:
    store.write(lambda tx: tx.append("system", settings.SettingsChanged(layer="global", id="", values={"hologram": 1}, removed=[])))
    with store.view() as view:
        assert "hologram" not in settings.effective(view) and settings.stored(view, "global") == {"hologram": 1}
    assert change(store, removed=("hologram",))
