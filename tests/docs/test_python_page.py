"""docs/python.md: its programs run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)


def run(program: str, folder: Path) -> str:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT / "src"), "STEAD_DATA": str(folder / "data")}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_that_runs_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "s.yaml").write_text(
        "turns:\n  - tools: [{tool: edit, input: {path: calc.py, old: a + b, new: b + a}}]\n  - text: Mended.\n"
    )
    assert run(BLOCKS[0].replace("openai/MODEL", "script/s.yaml"), tmp_path) == "done Mended. 0.0\n"
    assert "b + a" in (tmp_path / "calc.py").read_text()


def test_the_program_that_waits_for_a_person(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "s.yaml").write_text(
        "turns:\n  - tools: [{tool: edit, input: {path: calc.py, old: a + b, new: b + a}}]\n  - text: Mended.\n"
        "prompts:\n  - {match: sub, turns: [{tools: [{tool: list, input: {}}]}, {text: And one more.}]}\n"
    )
    assert run(BLOCKS[1].replace("openai/MODEL", "script/s.yaml"), tmp_path) == "waiting edit\ndone\n"
    assert "b + a" in (tmp_path / "calc.py").read_text()


def test_the_program_that_takes_back(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "s.yaml").write_text(
        "turns:\n  - tools: [{tool: edit, input: {path: calc.py, old: a + b, new: b + a}}]\n  - text: Mended.\n"
    )
    told = "[('calc.py', 'clean')] [1, 2]\n['calc.py'] []\n['calc.py'] True\n"
    assert run(BLOCKS[2].replace("openai/MODEL", "script/s.yaml"), tmp_path) == told
    assert "b + a" in (tmp_path / "calc.py").read_text()


def test_the_program_with_the_store_alone(tmp_path: Path) -> None:
    assert run(BLOCKS[3], tmp_path) == "[('hall',)] ['lamp.lit']\n"
