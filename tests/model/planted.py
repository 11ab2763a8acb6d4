"""Faults planted on purpose, which the random life has to find. Each gives the module or class, the name, and what is put in its
place, made of what was there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stead.agent import calls, changing, closing, live, loop
from stead.app import deletion, handle, life
from stead.domain import asks, partials, queue, runs, sessions
from stead.store.log import Tx


@dataclass(frozen=True)
class Fault:
    """A planted fault; `tells` is a pattern of what must be said when it is found."""

    name: str
    owner: Any
    attribute: str
    made: Callable[[Any], Any]
    tells: str
    examples: int = 200
    """Within how many examples of the small form it is found."""


FAULTS: list[Fault] = []


def fault(owner: Any, attribute: str, tells: str, examples: int = 200) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
        FAULTS.append(Fault(made.__name__, owner, attribute, made, tells, examples))
        return made

    return add


NOT_AS_IT_MUST_BE = "there must be"


@fault(queue, "hold_session", "there must be|a run that does not end")
def recovery_does_not_hold_the_queue(real: Any) -> Any:
    return lambda tx, session, reason: []


@fault(queue, "hold_of", NOT_AS_IT_MUST_BE)
def prompts_of_the_dead_keep_their_owner(real: Any) -> Any:
    return lambda tx, dead, reason: []


@fault(runs, "end", "ended twice|there must be|is not at work")
def a_run_ends_without_looking(real: Any) -> Any:
    def end(tx: Tx, run: str, outcome: Any, *, steps: int, error: Any = None) -> bool:
        for _ in range(2 if outcome == "interrupted" else 1):
            tx.append(runs.get(tx, run).session, runs.RunEnded(run=run, outcome=outcome, steps=steps, error=error), run=run)
        return True

    return end


@fault(partials, "close_run", "is not at work")
def rows_of_growing_text_stay(real: Any) -> Any:
    return lambda tx, run: None


@fault(calls.Calls, "one", "is started now|two results|twice|there must be")
def a_call_that_ran_is_run_again(real: Any) -> Any:
    async def one(self: Any, n: int, part: Any) -> Any:
        done = await real(self, n, part)
        if part["tool"] == "bash" and done["status"] == "done":
            return await real(self, n, part)
        return done

    return one


@fault(runs, "close_calls", "at its end|is running in a run|is pending in a run")
def calls_stay_open_at_the_end(real: Any) -> Any:
    return lambda tx, run, **more: None


@fault(queue, "begin", "out of its turn|there must be")
def a_prompt_begins_out_of_its_turn(real: Any) -> Any:
    def begin(tx: Tx, prompt: Any, owner: str) -> Any:
        last = [one for one in queue.waiting(tx, prompt.session) if one.held is None][-1:]
        first, queue.head = queue.head, lambda tx, session: last[0] if last else None
        try:
            return real(tx, prompt, owner)
        finally:
            queue.head = first

    return begin


@fault(queue, "edit", NOT_AS_IT_MUST_BE)
def an_edit_is_acknowledged_and_not_stored(real: Any) -> Any:
    return lambda tx, prompt, parts: None


@fault(asks, "answer", "ask_closed|was answered|not refused", 1_000)
def an_ask_is_answered_twice(real: Any) -> Any:
    def answer(tx: Tx, ask: str, value: Any, *, by: str) -> Any:
        found = asks.get(tx, ask)
        tx.append(found.session, asks.AskAnswered(ask=ask, answer=value, by=by), run=found.run)
        return asks.get(tx, ask)

    return answer


@fault(asks, "resumable", NOT_AS_IT_MUST_BE)
def a_question_dies_with_its_process(real: Any) -> Any:
    return lambda view, session, run: None


@fault(loop.Loop, "_steered", NOT_AS_IT_MUST_BE, 1_000)
def what_is_sent_now_waits_like_all_others(real: Any) -> Any:
    async def steered(self: Any) -> bool:
        return False

    return steered


@fault(handle.RunHandle, "leave", NOT_AS_IT_MUST_BE)
def who_leaves_in_order_holds_the_queue(real: Any) -> Any:
    return lambda self: self.abort()


@fault(life.Life, "dead", NOT_AS_IT_MUST_BE)
def the_living_count_as_dead(real: Any) -> Any:
    return lambda self, known: real(self, known) | (set(known) - {self.id})


@fault(deletion, "queue", "conflict|there must be")
def what_waits_begins_while_its_session_is_deleted(real: Any) -> Any:
    return SimpleNamespace(hold_session=lambda tx, session, reason: [], let_go=lambda tx, held, reason: None)


@fault(closing, "look", "less there than was kept")
def text_that_was_kept_is_thrown_away(real: Any) -> Any:
    def look(*args: Any, **more: Any) -> Any:
        left = real(*args, **more)
        left.parts.clear()
        return left

    return look


@fault(live.Live, "_save", NOT_AS_IT_MUST_BE)
def growing_text_is_not_kept(real: Any) -> Any:
    return lambda self: None


@fault(sessions, "change", "a rebuild gives other rows")
def a_row_is_written_without_an_event(real: Any) -> Any:
    def change(tx: Tx, session: str, **values: Any) -> None:
        real(tx, session, **values)
        tx.q("UPDATE sessions SET pinned=1 WHERE id=?", session)

    return change


@fault(changing, "_apply", "the disk holds what the log does not know")
def a_file_is_written_that_no_change_names(real: Any) -> Any:
    def apply(path: Path, *given: Any) -> Any:
        path.with_suffix(".bak").write_text("left behind")
        return real(path, *given)

    return apply
