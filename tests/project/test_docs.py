"""Run every snippet of README.md, CONTRIBUTING.md and docs/, and compare its output with the page.

How a page is read, from the top:

- `python` blocks run in one namespace, in a folder per page that holds only deploy/. Training is in-process unless a
  block names an engine.
- `toml title="NAME"` is written to that file, and must be a job, a policy or a file of candidates.
- `bash`: lines that call `vfl` run in this process (in-process training unless they name an engine), and so do lines
  that run one of our modules. Other lines run in a shell, except those that install and test the project itself
  (NOT_RUN).
- `text` is the output of the last block. `…` stands for anything, and a line of `…` for any lines. Under the comment
  `<!-- numbers move -->` numbers, digests and the lengths of spaces are not compared, because noise is fresh in every
  run.
- `sh` blocks are scripts for several machines, which tests/faults/test_organisations.py follows, with the output after them.
- Blocks without a language are formulas and drawings.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click
import click.shell_completion
import pytest
from click.testing import CliRunner

import vfl
import vfl.network.kinds
from parties.consent import Demands, Limit, Policy, PredictionPolicy
from vfl.apps.cli import COMMANDS, INSTEAD, OPTIONS
from vfl.apps.cli import vfl as command_line
from vfl.apps.tuning.candidates import read_candidates
from vfl.base.losses import LOSSES
from vfl.base.penalties import PENALTIES
from vfl.job import file as jobfile
from vfl.launch.run import warnings as running
from vfl.queries import kinds
from vfl.queries.samplers import SAMPLERS
from vfl.solvers import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.M | re.S)
MOVING = "<!-- numbers move -->"
NOT_RUN = (
    "python3 -m venv ",
    "taskset ",
    "pip install ",
    "git clone ",
    "python -m pytest",
    "python -m mkdocs",
    "python -m tests.benchmarks",
    ".ci/run",
    "ruff ",
    "mypy",
)


@dataclass(frozen=True)
class Block:
    """One fenced block. line : its first line in the page."""

    language: str
    title: str
    body: str
    line: int
    moving: bool


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    for found in FENCE.finditer(text):
        language, _, rest = found["info"].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', rest)
        before = text[: found.start()].rstrip()
        yield Block(
            language,
            title[1] if title else "",
            found["body"],
            text.count("\n", 0, found.start()) + 1,
            before.endswith(MOVING),
        )


TOKEN = re.compile(r"(?P<rest>…)|(?P<digest>\b[0-9a-f]{12,}\b)|(?P<number>-?\d[\d.]*(?:e[-+]?\d+)?)|(?P<space> +)")
MOVED = {"digest": "[0-9a-f]+", "number": r"-?\d[\d.]*(?:e[-+]?\d+)?", "space": " +"}


def pattern_of(said: str, *, moving: bool) -> re.Pattern[str]:
    """Return the pattern that output must match for the text `said` of a page."""
    lines = []
    for line in said.rstrip().splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        pattern, at = "", 0
        for token in TOKEN.finditer(line.rstrip()):
            pattern += re.escape(line[at : token.start()])
            own = ".*?" if token["rest"] else MOVED[str(token.lastgroup)] if moving else re.escape(token[0])
            if moving and line.startswith(" [", token.end()):  # the noise decides whether it is shown
                own = f"(?:too noisy to tell:|{own})"
            pattern += own
            at = token.end()
        lines.append(pattern + re.escape(line.rstrip()[at:]) + r"[ \t]*\n")
    return re.compile("".join(lines))


def matches(said: str, printed: str, *, moving: bool = False) -> bool:
    """Return True if the whole output matches the page."""
    return pattern_of(said, moving=moving).fullmatch(printed.strip("\n") + "\n") is not None


class Reader:
    """Follows a page to the letter."""

    def __init__(self) -> None:
        self.namespace = {"__name__": "__main__"}
        self.printed: str | None = ""

    def follow(self, block: Block, page: str) -> None:
        """Execute the block."""
        run = getattr(self, f"_{block.language or 'drawing'}", None)
        assert run is not None, f"{page}:{block.line}: nobody knows how to run a block of {block.language!r}"
        run(block, f"{page}:{block.line}")

    def _drawing(self, block: Block, where: str) -> None:
        pass

    def _sh(self, block: Block, where: str) -> None:
        assert block.title, f"{where}: name the machine, title=..."
        self.printed = None

    def _python(self, block: Block, where: str) -> None:
        out = io.StringIO()
        code = compile("\n" * (block.line) + block.body, where, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(out):
            exec(code, self.namespace)  # noqa: S102 — the page's own code
        self.printed = out.getvalue()

    def _toml(self, block: Block, where: str) -> None:
        assert block.title, f"{where}: name the file, title=..."
        path = Path(block.title)
        path.write_text(block.body, encoding="utf-8")
        plain = tomllib.loads(block.body)
        if "total" in plain:
            Policy.read(path)
        elif "candidates" in plain:
            read_candidates(path)
        else:
            jobfile.read(path)

    def _bash(self, block: Block, where: str) -> None:
        self.printed = ""
        for line in block.body.replace("\\\n", " ").splitlines():
            words = line.split("#")[0].strip() if not line.strip().startswith("#") else ""
            words = re.sub(r"^.*&& \.venv/bin/(?=vfl )", "", words)  # the line after an installation
            if words.startswith("vfl ") and not re.search(r"[|<>;&]", words):
                self._vfl(shlex.split(words)[1:], where)
            elif words.startswith("python -m vfl."):
                self._script(words.split()[2:])
            elif words and not words.startswith(NOT_RUN):
                self._shell(words, where)

    def _vfl(self, words: list[str], where: str) -> None:
        if words[0] in ("run", "tune", "align") and "--at" not in words:
            words += ["--at", "inprocess"]
        result = CliRunner().invoke(command_line, words, standalone_mode=False)
        if isinstance(result.exception, vfl.VflError):
            self.printed += f"error: {result.exception}\n"
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(f"{where}: {words}: {result.output}") from result.exception
        self.printed += result.output

    def _script(self, words: list[str]) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_module(words[0], run_name="__main__")
        self.printed += out.getvalue()

    def _shell(self, words: str, where: str) -> None:
        place = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", words], env=os.environ | place, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{where}: {words}: {done.stderr}"
        self.printed += done.stdout

    def _text(self, block: Block, where: str) -> None:
        if self.printed is None:
            return
        said = matches(block.body, self.printed, moving=block.moving)
        assert said, f"{where}: the page says\n{block.body}\nand what is printed is\n{self.printed}"


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """Make a folder with only deploy/ of the checkout, no earlier fits, and in-process training; restore registries."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(running, "of_this_process", running.RunningTotal())
    monkeypatch.setenv("VFL_INDEX", str(tmp_path / "indexes"))
    for place, name in ((vfl, "train"), (vfl, "tune"), (vfl, "align"), (vfl.releases, "private_bounds")):
        original = getattr(place, name)
        monkeypatch.setattr(place, name, functools.partial(original, at="inprocess"))
    monkeypatch.setitem(kinds._families, "rule", dict(kinds._families["rule"]))
    registries = (LOSSES, PENALTIES, SAMPLERS, SOLVERS)
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


def follow(text, page):
    reader = Reader()
    for block in blocks_of(text):
        reader.follow(block, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_can_be_followed_to_the_letter(page):
    follow(page.read_text(encoding="utf-8"), page.name)


PRINTED = "round 3/7  ε 0.805 of 2\nmodel: runs/x-20261121-054953\n"


@pytest.mark.parametrize(
    ("said", "moving", "holds"),
    [
        ("round 3/7  ε 0.805 of 2\nmodel: runs/x-20261121-054953", False, True),
        ("round 3/7  ε 0.805 of 2\nmodel: …", False, True),
        ("…\nmodel: …", False, True),
        ("round 3/7  ε 0.805 of 2", False, False),
        ("round 4/7  ε 0.805 of 2\nmodel: …", False, False),
        ("round 4/12  ε 1.1 of 2\nmodel: runs/x-20270101-000000", True, True),
        ("ronde 4/12  ε 1.1 of 2\nmodel: runs/x-20270101-000000", True, False),
        ("round 4/12  ε 1.1\nmodel: runs/x-20270101-000000", True, False),
    ],
)
def test_output_on_pages_is_compared(said, moving, holds):
    assert matches(said, PRINTED, moving=moving) is holds


@pytest.mark.parametrize(("moving", "holds"), [(True, True), (False, False)])
def test_an_estimate_may_be_marked_as_too_noisy(moving, holds):
    assert matches("mae 46.36 [28, 64], r2 0.5", "mae too noisy to tell: [28, 64], r2 0.5\n", moving=moving) is holds
    assert not matches("mae 46.36 [28, 64], r2 0.5", "mae 46.36 [28, 64], r2 too noisy to tell: 0.5\n", moving=moving)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nvfl_train\n```\n", NameError),
        ("```python\nprint(1)\n```\n```text\n2\n```\n", AssertionError),
        ('```toml title="job.toml"\nformat = 1\n```\n', vfl.VflError),
        ("```bash\nvfl run nonsense\n```\n```text\nfine\n```\n", AssertionError),
        ("```bash\nfalse\n```\n", AssertionError),
        ("```cobol\nSTOP RUN.\n```\n", AssertionError),
    ],
)
def test_a_wrong_page_is_noticed(text, error):
    with pytest.raises(error):
        follow(text, "page")


LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_have_targets(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [found["target"].split("#")[0] for found in LINK.finditer(text)]
    local = [target for target in targets if target and not target.startswith(("http:", "https:", "mailto:"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


NOT_PYTHON = ("vfl.sources", "vfl.wire.v1.Federation")
"""A group of entry points, and a service of the wire."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_and_files_on_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:vfl|coordinator|parties|tests|deploy|docs)/[\w/.-]+\.\w+)`", text)
    assert [name for name in files if not (ROOT / name).is_file()] == []
    names = {*re.findall(r"`((?:vfl|coordinator|parties)(?:\.\w+)+)[`(]", text)}.difference(NOT_PYTHON)
    for name in names:
        pkgutil.resolve_name(name)


def test_help_fits_one_screen():
    said = CliRunner().invoke(command_line, ["--help"]).output
    assert len(said.splitlines()) <= 24
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_offered(shell):
    environment = os.environ | {"_VFL_COMPLETE": f"{shell}_source", "PYTHONPATH": str(ROOT)}
    program = "import sys; from vfl.apps.cli import main; sys.argv = ['vfl']; main()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if shell == "bash" and "Bash version" in done.stderr:
        pytest.skip("this bash is too old for click")
    assert "_VFL_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ((), "al", [("plain", "align")]),
        (("run",), "breast_c", [("plain", "breast_cancer"), ("file", "breast_c")]),
        (("plan",), "job", [("file", "job")]),
        (("evaluate", "runs/x", "--data"), "b", [("file", "b")]),
        (("run", "job.toml"), "--war", [("plain", "--warm-start")]),
        (("ledger",), "sh", [("plain", "show")]),
        (("export", "runs/x", "--form"), "sq", [("plain", "sql")]),
    ],
)
def test_completions(words, incomplete, offered):
    shell = click.shell_completion.BashComplete(command_line, {}, "vfl", "_VFL_COMPLETE")
    assert [(item.type, item.value) for item in shell.get_completions(list(words), incomplete)] == offered


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_a_terminal(name):
    """Eighty columns and 40 lines: users read the help of one command at a time."""
    said = CliRunner().invoke(command_line, [name, "--help"]).output.splitlines()
    assert len(said) <= 40
    assert max(map(len, said)) <= 80
    assert name != "ledger" or not [line for line in said if re.search(r"\w\.\.\.$", line)]  # cut by click


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """.ci/run builds it in every run."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed; .ci/run builds the site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def leaves(command, path=()):
    """Yield (path, command) for all commands and those of groups."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(click.Context(command)):
        yield from leaves(command.get_command(click.Context(command), name), (*path, name))


def test_the_command_line_stays_small():
    """An option of a single command, or one that repeats a key of a table, has to be worth a line of --help."""
    options = [
        option for _, found in leaves(command_line) for option in found.params if isinstance(option, click.Option)
    ]
    assert len(list(leaves(command_line))) <= 28
    assert len(options) <= 130
    assert len(CliRunner().invoke(command_line, ["--help"]).output.splitlines()) <= 24


def test_no_earlier_name_is_still_a_name():
    """An error answers earlier names only where nothing has the name today."""
    having = {path: {name for option in found.params for name in option.opts} for path, found in leaves(command_line)}
    for key in OPTIONS:
        *words, option = key.split()
        own = [options for path, options in having.items() if words and set(words) <= set(path)]
        assert not words or any(option not in options for options in own), key
    assert not {tuple(name.split()) for name in INSTEAD} & set(having)


def test_every_command_is_listed():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`vfl {name}" not in page] == []


def test_every_key_of_a_policy_is_explained():
    page = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    keys = {field.name for kind in (Policy, PredictionPolicy, Demands, Limit) for field in fields(kind)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page and f"`[{key}]`" not in page] == []
    assert {"jobs", "epsilon", "models", "collude"} <= keys


def test_every_exit_code_is_listed():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    codes = {kind.exit_code for kind in vars(vfl.errors).values() if hasattr(kind, "exit_code")}
    assert len(codes) > 3
    assert [code for code in sorted(codes) if f"| {code} |" not in page] == []


@pytest.mark.parametrize("option", ["--at"])
def test_every_command_with_an_option_is_listed(option):
    page = " ".join((ROOT / "docs" / "commands.md").read_text(encoding="utf-8").split())
    listed = re.search(rf"On ((?:`\w+`(?:, | and )?)+), `{option} ", page)
    assert listed is not None
    commands = {name: command_line.get_command(click.Context(command_line), name) for name in COMMANDS}
    having = {name for name, command in commands.items() if any(option in item.opts for item in command.params)}
    assert set(re.findall(r"`(\w+)`", listed[1])) == having
