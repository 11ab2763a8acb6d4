"""Events: what is in the log. A kind is a small class declared once with `@event`; its annotated fields are the stored JSON.

Kinds are `noun.past`. A new field needs a default; anything else is a new version with a `lift` from the old one, kept for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform


class Fact:
    """The base of every event's data: keyword arguments become its fields, which never change.

    It behaves like a frozen dataclass and is none, because making dozens of those costs a reading command more than its query.
    """

    kind: ClassVar[str]
    v: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    defaults: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        own = self.__dict__
        if len(values) == len(self.fields):
            try:
                own.update({name: values[name] for name in self.fields})
                return
            except KeyError:
                pass  # below is said what is wrong
        for name in self.fields:
            if name in values:
                own[name] = values.pop(name)
            elif name in self.defaults:
                own[name] = self.defaults[name]
            else:
                raise TypeError(f"{self.kind} needs {name!r}")
        if values:
            raise TypeError(f"{self.kind} has no field {next(iter(values))!r}")

    def to_data(self) -> dict[str, Any]:
        """The fields in their order, as they are stored."""
        return self.__dict__

    def blobs(self) -> Iterator[str]:
        """The hashes of the blobs this event refers to; the log refuses the event when one of them is missing (I4)."""
        return blob_hashes(list(self.__dict__.values()))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.kind} is a fact: {name!r} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.kind} is a fact: {name!r} cannot be removed")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


F = TypeVar("F", bound=Fact)
F_co = TypeVar("F_co", bound=Fact, covariant=True)
C = TypeVar("C", bound=type)

KINDS: dict[str, type[Fact]] = {}
_LIFTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True, slots=True)
class Event(Generic[F_co]):
    """One committed line of the log. `seq` is database-wide and the only order; gaps mean nothing. `ts` is milliseconds in UTC."""

    seq: int
    stream: str
    ts: int
    actor: str
    run: str | None
    op: str | None
    data: F_co

    @property
    def kind(self) -> str:
        return self.data.kind


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(kind: str, *, v: int = 1) -> Callable[[C], C]:
    """Declare the class below as the data of events of `kind` in version `v`."""

    def declare(cls: C) -> C:
        made: Any = cls
        made.kind, made.v, made.fields = kind, v, tuple(cls.__annotations__)
        made.defaults = {name: cls.__dict__[name] for name in made.fields if name in cls.__dict__}
        assert kind not in KINDS or KINDS[kind].__qualname__ == made.__qualname__, f"two declarations of {kind}"
        KINDS[kind] = made
        return cast(C, made)

    return declare


def lifts(kind: str, v: int) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Callable[[dict[str, Any]], dict[str, Any]]]:
    """Declare a pure function that turns the data of version `v` of `kind` into that of version `v + 1`."""

    def declare(fn: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        _LIFTS[kind, v] = fn
        return fn

    return declare


@event("unknown.kept")
class UnknownFact(Fact):
    """Stands for an event whose kind this version does not know: kept, passed on, projected by nobody."""

    original_kind: str
    original: dict[str, Any]


def decode(kind: str, v: int, data: dict[str, Any]) -> Fact:
    """The event data in today's shape: old versions lifted, unknown fields ignored. An unknown kind, or a version newer than
    ours, is an `UnknownFact`."""
    cls = KINDS.get(kind)
    if cls is None or v > cls.v:
        return UnknownFact(original_kind=kind, original=data)
    while v < cls.v:
        data, v = _LIFTS[kind, v](data), v + 1
    return cls(**{name: data[name] for name in cls.fields if name in data})


def as_stored(fact: F, data: dict[str, Any]) -> F:
    """The fact that `decode` gives for `data`, which is how `fact` was just stored: of today's version, with all its fields."""
    stored = object.__new__(type(fact))
    stored.__dict__.update(data)
    return stored


def blob_hashes(value: object) -> Iterator[str]:
    """Every blob that a JSON value refers to: `{"$blob": hash}` for moved text, `{"blob": hash}` for files."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("$blob", "blob") and isinstance(item, str) and _is_hash(item):
                yield item
            else:
                yield from blob_hashes(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from blob_hashes(item)


def _is_hash(text: str) -> bool:
    return len(text) == 64 and all(char in "0123456789abcdef" for char in text)
