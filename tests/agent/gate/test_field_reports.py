"""What went wrong in other tools does not go wrong here; each test is named after its report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stead.agent.gate import Action, Rule, judge, parse, path_denied
from stead.core.errors import SteadError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "p"
    (folder / "src").mkdir(parents=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "h"
    folder.mkdir()
    return folder


def _rules(*texts: str) -> list[Rule]:
    actions: dict[str, Action] = {"+": "allow", "?": "ask", "-": "deny"}
    return [parse(text[2:], actions[text[0]], "flag") for text in texts]


def _bash(rules: list[Rule], command: str, project: Path, home: Path) -> str:
    return judge(rules, "bash", {"command": command}, project=project, home=home).action


def _path(rules: list[Rule], tool: str, project: Path, home: Path, **input: str) -> str:
    return judge(rules, tool, dict(input), project=project, home=home).action


HIDDEN = [
    *(
        "git status; rm x",
        "git status && rm -rf x",
        "git status || rm x",
        "git status | rm x",
        "git status & rm x",
        "git status\nrm x",
    ),
    *(
        "git log $(rm x)",
        'git log "$(rm x)"',
        "git log `rm x`",
        "git log <(rm x)",
        "(rm x)",
        "{ rm x; }",
        "! rm x",
        "git log |& rm x",
    ),
    *(
        "cat <<E\n$(rm x)\nE",
        "bash <<E\nrm x\nE",
        "cat <<E | sh\nrm x\nE",
        "bash <<< 'rm x'",
        "echo 'rm x' | sh",
        "cat <<E && rm x\nE",
    ),
    *(
        "if true; then rm x; fi",
        "for i in a; do rm $i; done",
        "while rm x; do :; done",
        "case a in a) rm x;; esac",
        "f() { rm x; }; f",
    ),
    *(
        '"r"m x',
        "'rm' x",
        "r\\m x",
        "\\rm x",
        'r""m x',
        "$'rm' x",
        "$'\\x72m' x",
        "rm\tx",
        "rm$IFS-rf${IFS}x",
        "rm\u00a0x",
        "rm\u2003x",
    ),
    *("/bin/rm x", "A=1 rm x", "rm", "rm x &", ">log rm x", "rm x > log", "{rm,x}", "r{m,} x", "r$@m x", "echo ${x:-$(rm x)}"),
    *(
        "git log; if rm x",
        "git 'log; rm x",
        "git log ) ; rm x",
        "[[ -f $(rm x) ]]",
        "x=$(rm x)",
        "export x=$(rm x)",
        "alias ll='rm x'; ll",
    ),
    *(
        "rm$nothing x",
        "$nothing rm x",
        "git log\n\\rm x",
        "rm x # git status",
        "# git status\nrm x",
        "git log \\\n; rm x",
        "git status\r\nrm x",
        "echo $((`rm x`))",
        "trap 'rm x' EXIT",
    ),
]
UNKNOWN = [
    "x=rm; $x y",
    "$x y",
    "${x} y",
    "$(echo rm) x",
    "`echo rm` x",
    "r?  x",
    "/bin/r* x",
    "git status &",
    "git log $x",
    "!!",
    "a=(1) git log",
]


@pytest.mark.parametrize("command", HIDDEN)
def test_b096_a_denied_command_is_found_wherever_it_stands(command: str, project: Path, home: Path) -> None:
    assert _bash(_rules("+ bash(git *)", "- bash(rm *)"), command, project, home) == "deny"
    assert _bash(_rules("+ bash", "- bash(rm *)"), command, project, home) == "deny"


@pytest.mark.parametrize("command", UNKNOWN)
def test_b096_what_is_not_one_known_command_asks(command: str, project: Path, home: Path) -> None:
    assert _bash(_rules("+ bash(git *)", "+ bash(cat *)", "+ bash(* x)", "+ bash(* y)"), command, project, home) == "ask"


@pytest.mark.parametrize("command", HIDDEN)
def test_b096_what_an_allowed_command_hides_is_not_allowed(command: str, project: Path, home: Path) -> None:
    assert _bash(_rules("+ bash(git *)", "+ bash(cat *)", "+ bash(echo *)"), command, project, home) == "ask"


CARRIED = [
    *(
        "sudo rm x",
        "sudo -u bob -n rm x",
        "env rm x",
        "env -i A=1 rm x",
        "env -S 'rm x'",
        "bash -c 'rm x'",
        "sh -ec 'ls; rm x'",
        "eval rm x",
    ),
    *(
        "eval 'ls; rm x'",
        "timeout 5 rm x",
        "timeout -k 1 5 rm x",
        "nice -n 5 rm x",
        "nice -5 rm x",
        "nohup rm x",
        "time rm x",
        "exec rm x",
    ),
    *(
        "command rm x",
        "builtin rm x",
        "xargs rm",
        "xargs -0 rm",
        "xargs -n1 -I {} rm {}",
        "xargs sh -c 'rm x'",
        "find . -exec rm {} +",
    ),
    *(
        "find . -name a -exec rm {} \\;",
        "find . -execdir sh -c 'rm x' \\;",
        "git -c alias.x='!rm x' x",
        "git -c core.pager='rm x' log",
    ),
    *(
        "git rebase --exec 'rm x'",
        "git submodule foreach rm x",
        "git bisect run rm x",
        "ssh host rm x",
        "ssh host 'ls; rm x'",
        "sudo env nice rm x",
    ),
    *(
        "awk 'BEGIN { system(\"rm x\") }'",
        "gawk 'BEGIN { system(\"rm x\") }'",
        "python -c 'import os; os.system(\"rm x\")'",
        "su -c 'rm x'",
    ),
    *(
        "python3.11 -c 'import os; os.system(\"rm x\")'",
        "perl -e 'system(\"rm x\")'",
        "node -e 'exec(\"rm x\")'",
        "doas rm x",
        "setsid -w rm x",
    ),
    *(
        "stdbuf -oL rm x",
        "watch rm x",
        "parallel rm ::: x",
        "tar --to-command='rm x' -xf y",
        "docker run --rm img rm x",
        "npx rm x",
        "busybox rm x",
    ),
    *(
        "find . -ok rm {} \\;",
        "flock lock rm x",
        "chroot / rm x",
        "uv run rm x",
        "fd -x rm",
        "git clone 'ext::rm x' y",
        "rsync -e 'rm x' a b",
    ),
]
CARRIERS = sorted({command.split()[0] for command in CARRIED})


@pytest.mark.parametrize("command", CARRIED)
def test_b097_a_carried_command_is_judged_or_asks(command: str, project: Path, home: Path) -> None:
    outer = [f"+ bash({name} *)" for name in CARRIERS]
    assert _bash(_rules(*outer, "- bash(rm *)"), command, project, home) == "deny"
    assert _bash(_rules(*outer), command, project, home) == "ask"
    assert _bash(_rules("+ bash"), command, project, home) == "allow"


WRITES = [
    *(
        "git log > ../x",
        "git log >> ../x",
        "git log 2> ../x",
        "git log >| ../x",
        "git log &> ../x",
        "git log >& ../x",
        "git log | tee ../x",
    ),
    *(
        "git log --output=../x",
        "git log --output ../x",
        "git diff --outp=../x",
        "cat a > ../x b",
        "git log 3<> ../x",
        'git log > "../"x',
    ),
]


@pytest.mark.parametrize("command", WRITES)
def test_b098_a_write_by_the_shell_is_a_write_to_that_path(command: str, project: Path, home: Path) -> None:
    assert _bash(_rules("+ bash(git log *)", "+ bash(git diff *)", "+ bash(cat *)"), command, project, home) == "ask"
    assert _bash(_rules("+ bash", "- edit(../x)"), command, project, home) == "deny"
    assert _bash(_rules("+ bash", "- edit(../y)"), command, project, home) == "allow"


def test_b100_both_the_typed_and_the_real_path_are_judged(project: Path, home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "etc"
    (outside / "deep").mkdir(parents=True)
    (outside / "passwd").write_text("x")
    (project / "link").symlink_to(outside / "passwd")
    (project / "folder").symlink_to(outside)
    (project / "loop").symlink_to("loop")
    (project / "chain").symlink_to("folder")
    deny = _rules("+ edit", f"- read({outside}/**)", f"- edit({outside}/**)")
    for path in (
        "link",
        "folder/passwd",
        "chain/passwd",
        "folder/not/yet",
        "./src/../link",
        "folder/deep/../passwd",
        f"{project}/link",
    ):
        assert _path([], "read", project, home, path=path) == "ask", path
        assert _path(deny, "read", project, home, path=path) == "deny", path
        assert _path(deny, "write", project, home, path=path) == "deny", path
        assert _path(_rules("+ edit(**)"), "edit", project, home, path=path) == "ask", path
        assert _bash(_rules("+ bash", f"- read({outside}/**)"), f"cat {path}", project, home) == "deny", path
        assert path_denied(deny, "read", path, project=project, home=home) is not None
    # The letters say src/x, the system goes to the folder above the link's target.
    assert _path([], "read", project, home, path="folder/../passwd") == "ask"
    assert _path([], "read", project, home, path="loop") == "allow"
    # A rule for a name that is a link covers the name, never what it leads to; a deny covers both.
    assert _path(_rules("+ edit(folder/**)"), "edit", project, home, path="folder/passwd") == "ask"
    assert _path(_rules("- read(folder/**)"), "read", project, home, path=str(outside / "passwd")) == "deny"


def test_b100_a_link_inside_the_project_needs_both_places_allowed(project: Path, home: Path) -> None:
    (project / "docs").mkdir()
    (project / "src" / "docs").symlink_to("../docs")
    assert _path([], "read", project, home, path="src/docs/a") == "allow"
    assert _path(_rules("+ edit(src/**)"), "edit", project, home, path="src/docs/a") == "ask"
    assert _path(_rules("+ edit(src/**)", "+ edit(docs/**)"), "edit", project, home, path="src/docs/a") == "allow"


def test_b100_the_project_and_home_may_themselves_be_links(project: Path, home: Path, tmp_path: Path) -> None:
    short, house = tmp_path / "short", tmp_path / "house"
    short.symlink_to(project)
    house.symlink_to(home)
    assert _path(_rules("+ edit(src/**)"), "edit", short, house, path="src/a") == "allow"
    assert _path(_rules("+ edit(src/**)"), "edit", short, house, path=f"{project}/src/a") == "allow"
    assert _path(_rules("- read(~/key)"), "read", short, house, path=f"{home}/key") == "deny"


@pytest.mark.skipif(not os.path.exists("/proc/self/root"), reason="no /proc")
def test_b100_the_root_behind_proc_is_the_root(project: Path, home: Path) -> None:
    assert _path(_rules("+ read", "- read(/etc/**)"), "read", project, home, path="/proc/self/root/etc/passwd") == "deny"
    assert _bash(_rules("+ bash", "- read(/etc/**)"), "cat /proc/self/root/etc/passwd", project, home) == "deny"


def test_b100_a_search_that_climbs_out_is_outside(project: Path, home: Path) -> None:
    for pattern in ("../*", "*/../../*", "/etc/*", "~/*", "{../a,b}", "{/etc,a}/*", "src/../../x*"):
        assert _path([], "glob", project, home, pattern=pattern) == "ask", pattern
    for pattern in ("*.py", "**/*.py", "src/*", "{a,b}.py", "a..b"):
        assert _path([], "glob", project, home, pattern=pattern) == "allow", pattern
    assert _path([], "grep", project, home, pattern="x", glob="../*") == "ask"
    assert _path([], "grep", project, home, pattern="../x") == "allow"
    assert _path(_rules("- read(secret/**)"), "glob", project, home, pattern="secret/*") == "deny"
    assert _path(_rules("- read(.env)"), "grep", project, home, pattern="x", glob=".env") == "deny"


def test_b102_a_deny_of_any_layer_holds_and_a_broken_rule_is_never_dropped_silently(project: Path, home: Path) -> None:
    deny = parse("bash(rm *)", "deny", "project")
    for layer in ("flag", "session", "agent", "project", "global"):
        assert _bash([parse("*", "allow", layer), deny], "rm x", project, home) == "deny"
    for text in ("bash(rm *", "bsh(rm *)", "bash()"):
        with pytest.raises(SteadError):
            parse(text, "deny", "global")


@pytest.mark.parametrize(
    "command",
    [
        *(
            "grep -r x .",
            "grep -rn .env src",
            "npm run build",
            "cat .envrc",
            "cat src/.env",
            "cat .env.example",
            "make build",
            "ls",
            "ls .",
            "echo .env",
        ),
        *(
            "cargo build",
            "git add -A",
            "cat build.md",
            "python build.py",
            "tox build",
            "ls builds",
            "cat *.md",
            "find . -name .env",
            "ls *",
        ),
    ],
)
def test_b103_a_deny_only_stops_what_it_names(command: str, project: Path, home: Path) -> None:
    assert _bash(_rules("+ bash", "- read(.env)", "- edit(build/**)"), command, project, home) == "allow"
    program = command.split()[0]
    assert _bash(_rules(f"+ bash({program} *)", "- read(secret)"), command, project, home) == "allow"


@pytest.mark.parametrize(
    "command", ["cat .env", "cat ./.env", "cp .env x", "cat build/x", "rm -r build", "ls build/", "cat -- .env", "dd if=.env"]
)
def test_b103_and_it_does_stop_that(command: str, project: Path, home: Path) -> None:
    assert _bash(_rules("+ bash", "- read(.env)", "- edit(build/**)"), command, project, home) == "deny"


def test_b103_looking_through_a_folder_above_is_no_match_removing_it_is(project: Path, home: Path) -> None:
    rules = _rules("+ bash", "- read(src/secret/**)", "- edit(src/secret/**)")
    assert _bash(rules, "grep -r x src", project, home) == "allow"
    assert _bash(rules, "rm -r src", project, home) == "deny"
    assert _bash(rules, "mv src other", project, home) == "deny"
    assert _path(rules, "grep", project, home, path="src") == "allow"


def test_b103_wildcards_that_may_name_a_denied_file_ask_when_there_is_one(project: Path, home: Path) -> None:
    rules = _rules("+ bash", "- read(src/key.pem)", "- edit(keep/deep/**)")
    for command in ("cat src/*", "cat src/key.*", "cat s*/k?y.pem", "rm -rf *", "rm -rf k*/d*"):
        assert _bash(rules, command, project, home) == "allow", command
    (project / "src" / "key.pem").write_text("x")
    (project / "keep" / "deep").mkdir(parents=True)
    for command in (
        "cat src/*",
        "cat src/key.*",
        "cat s*/k?y.pem",
        "cat ./src/[jk]ey.pem",
        "rm -rf *",
        "rm -rf k*/d*",
        "cat keep/deep/*",
    ):
        assert _bash(rules, command, project, home) == "ask", command
    for command in ("cat src/*.py", "ls *", "cat s*", "rm *.pyc", "rm -rf l*"):
        assert _bash(rules, command, project, home) == "allow", command


@pytest.mark.parametrize(
    ("pattern", "command", "fits"),
    [
        ("ls *", "ls a/b/c", True),
        ("ls *", "ls", True),
        ("ls *", "ls  ", True),
        ("ls*", "lsof -i", True),
        ("ls *", "lsof", False),
        ("* a", "ls a", True),
        ("*", "anything at all", True),
        ("**", "anything at all", True),
        ("ls **", "ls", False),
        ("ls ** ", "ls a/b", True),
        ("ls a?c", "ls a/c", True),
        ("ls a?c", "ls ac", False),
        ("ls [a-c]", "ls b", False),
        ("ls {a,b}", "ls 'a'", False),
        (r"ls \*", "ls '*'", True),
        (r"ls \*", "ls b", False),
        (r"ls \\", r"ls '\'", True),
        ("ls \\", r"ls '\'", True),
        ("ls a.b", "ls axb", False),
        ("ls (a)", "ls '(a)'", True),
        ("ls ^a$", "ls a", False),
        ("LS *", "ls a", False),
        ("ls *.py", "ls a.py b.py", True),
        ("ls *.py", "ls a.pyc", False),
        ("ls * *", "ls a", True),
        ("ls * *", "ls", False),
        ("ls é", "ls e\u0301", True),
        ("git * --stat", "git log --stat", True),
        ("git * --stat", "git --stat", False),
        ("ls a*a*a*a*a*b", "ls " + "a" * 2000, False),
    ],
)
def test_b104_wildcards_in_commands(pattern: str, command: str, fits: bool, project: Path, home: Path) -> None:
    assert (_bash(_rules(f"+ bash({pattern})"), command, project, home) == "allow") == fits
