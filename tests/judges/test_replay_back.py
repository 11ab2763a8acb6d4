"""What goes back on later turns, judged field by field against what the recording client sent: only differences with a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.judges import recordings
from tests.judges.door import add_provider, prompt
from tests.judges.replay import LATER, Replay

pytestmark = [pytest.mark.judges, pytest.mark.slow]

SHOWN = 40
"""The report has no more differences of one request than this; more would hide some."""

ALLOWED = {
    # Ours to choose, and not part of the conversation.
    r"/tools: only sent": "stead offers its own tools",
    r"/tool_choice: only recorded": "left to the model, which is the default",
    r"/max_tokens: recorded .*": "a coding agent's answers are longer",
    r"/messages/0/content: recorded '', sent .*": "stead's own instructions (Chat Completions)",
    r"/system: only sent": "stead's own instructions (Anthropic)",
    r"/systemInstruction(: only sent|/role: only recorded|/parts/0/text: .*)": "stead's own instructions (Gemini)",
    r"/generationConfig(: only recorded|/responseModalities: only recorded|/thinkingConfig: only sent)": "text is the default",
    r"/messages/\d+/content/\d+/cache_control: only sent": "stead marks what may be cached",
    # The tools of the recording client do not exist here, so the model is told that, and not what they gave back then.
    r"/messages/\d+/content: recorded '.*', sent \"There is no tool .*": "the result (Chat Completions)",
    r"/messages/\d+/content/0/(content: recorded list, sent str|is_error: recorded 'False', sent 'True')": "the result (Anthropic)",
    r"/contents/\d+/parts/0/functionResponse/response/(error: only sent|return_value: only recorded)": "the result (Gemini)",
    # The same said in another way.
    r"/messages/\d+/content: only sent": "null beside tool calls, as OpenAI itself answers",
    r"/messages/\d+/content/\d+/caller: only sent": "came with the answer; the recording client dropped it",
    r"/contents/\d+/parts/0/function(Call|Response)/id: recorded 'pyd_ai_.*', sent 'call_.*'": "Gemini gave none",
}


@pytest.mark.parametrize("name", LATER)
def test_later_turns_send_back_what_was_sent_back(replay: Replay, proj: Path, name: str) -> None:
    kind, items = recordings.kind_of(name), replay.items(name)
    add_provider(kind, replay.address(name, copy_of="later__"))
    seen = prompt(proj, recordings.model_of(items[0]), recordings.prompt_of(items[0]))
    assert len(seen.tools) >= len(items) - 1
    turns = [one for one in replay.report(f"later__{name}") if one["n"] < len(items)]
    assert [(one["n"], one["path_ok"]) for one in turns] == [(n, True) for n in range(len(items))]
    for turn in turns:
        assert len(turn["diff"]) < SHOWN
        assert [found for found in turn["diff"] if not any(re.fullmatch(one, found, re.S) for one in ALLOWED)] == []
