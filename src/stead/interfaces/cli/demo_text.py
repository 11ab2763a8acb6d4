"""The demo's project and script: what is in the files, what the agent says and does."""

from __future__ import annotations

FILES = {
    "tally.py": '''"""Counting words."""


def count_words(text):
    return len(text.split(" "))


def longest(words):
    return sorted(words, key=len)[0]
''',
    "check.py": """from tally import count_words, longest

assert count_words("to be  or not") == 4, "double blanks count as a word"
assert longest(["a", "three", "be"]) == "three", "the shortest came back"
print("2 checks passed")
""",
}

PROMPT = "check.py fails. Find out why, mend it, and show that it passes."

SCRIPT = """\
turns:
  - reasoning: First I look at what is there.
    text: I look at the code and its check.
    chunk: 6
    delay_ms: 20
    tools:
      - {tool: read, input: {path: tally.py}}
      - {tool: read, input: {path: check.py}}
    usage: {input: 1840, output: 62, reasoning: 18}
  - text: Words are split at single blanks, so two blanks in a row count as an empty word. I change that.
    chunk: 6
    delay_ms: 20
    tools:
      - tool: edit
        input: {path: tally.py, old: 'text.split(" ")', new: 'text.split()'}
    usage: {input: 420, cache_read: 1840, output: 71}
  - text: There is a second fault, in `longest`. It gives the shortest word.
    chunk: 6
    delay_ms: 20
    tools:
      - tool: edit
        input: {path: tally.py, old: 'sorted(words, key=len)[0]', new: 'max(words, key=len)'}
    usage: {input: 210, cache_read: 2260, output: 58}
  - text: Now the check. Running a command needs your yes.
    chunk: 6
    delay_ms: 20
    tools:
      - {tool: bash, input: {command: python3 check.py}}
    usage: {input: 190, cache_read: 2470, output: 24}
  - text: |-
      Both faults are mended; what check.py says to that stands above.
      - `count_words` split at single blanks; it now splits at any run of blanks.
      - `longest` took the first of the words sorted by length, the shortest; it now takes the longest.
    chunk: 6
    delay_ms: 20
    usage: {input: 160, cache_read: 2660, output: 96}
"""
