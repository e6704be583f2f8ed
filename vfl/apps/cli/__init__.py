"""Command line. Each command has a module of its own, which is imported when the command is used."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = {
    "init": ("training.init", "draft a job from files"),
    "run": ("training.run", "train a job"),
    "tune": ("training.tune", "train variants; release the best under one ε"),
    "plan": ("training.plan", "show what a job would release; touches no data"),
    "align": ("training.plan", "find the records that all parties have"),
    "resume": ("training.resume", "continue a run that was cut off"),
    "predict": ("results.records", "apply a saved model to new records"),
    "show": ("results.model", "show coefficients with standard errors, and measures"),
    "evaluate": ("results.records", "measure a model on other records"),
    "monitor": ("results.monitor", "compare the records of today with those of training"),
    "verify": ("results.guarantee", "check a certificate, and state its guarantee"),
    "audit": ("results.guarantee", "try to refute a job's ε on simulated records"),
    "export": ("results.model", "split a model by party, or for scikit-learn"),
    "report": ("results.pages", "draw a finished run as one HTML page"),
    "ui": ("results.pages", "show a folder's jobs, runs and ledgers in a browser"),
    "ledger": ("administration.ledger", "set, show and check the budgets of data sets"),
    "identity": ("administration.federation", "make a key and a certificate for one participant"),
    "federation": ("administration.federation", "write, show or check the file that names all participants"),
    "join": ("administration.join", "take part with your data, under your own policy"),
    "serve": ("administration.join", "answer scoring requests over HTTP"),
    "doctor": ("administration.doctor", "check this installation"),
    "submit": ("cluster", "send a job to a Ray cluster"),
}
"""{command: (module that defines the command, line of the command in --help)}."""


TOLD_TOGETHER = {
    ("align", "resume"): "match records; continue a run that was cut off",
    ("predict", "serve"): "apply a saved model, or answer over HTTP",
    ("show", "evaluate"): "show what a run released; measure a model",
    ("export", "report", "ui"): "write a model's parts; draw runs as pages",
    ("monitor", "verify", "audit"): "watch drift; check a certificate or an ε",
    ("identity", "federation", "join"): "take part across organisations",
}
"""Commands that share one line of --help, so that the list fits one screen."""


INSTEAD = {
    "train": "vfl run",
    "fit": "vfl run",
    "test": "vfl evaluate",
    "score": "vfl evaluate",
    "budget": "vfl ledger",
    "search": "vfl tune",
    "summary": "vfl show",
    "compare": "vfl show",
    "status": "ray job status",
    "logs": "ray job logs",
    "cancel": "ray job stop",
    "stop": "ray job stop",
    "ledger export": "vfl ledger verify LEDGER --output FILE",
    "ledger replay": "vfl ledger show LEDGER DATASET --accountant NAME",
    "ledger audit": "vfl ledger verify",
    "identity show": "vfl federation show, for members; vfl identity new prints the fingerprint",
}
"""Names that other tools, or earlier versions, give to some commands, for suggestions."""
OPTIONS = {
    "--ledger": "--set ledger.path=FILE",
    "--metrics": "the environment variable VFL_METRICS, for commands of a federation",
    "--log": "the environment variable VFL_LOG, for commands of a federation",
    "--signing-key": "the environment variable VFL_KEY",
    "--index": "the environment variable VFL_INDEX",
    "--cores": "--set alignment.num_cpus=N",
    "join --cores": "a limit of the process, such as taskset: vfl join takes all cores that it may use",
    "--follow": "ray job logs ID --follow",
    "--part": "PARTY=FILE in the place of RUN",
    "--open": "the printed address",
    "--start": "--warm-start",
    "identity --folder": "a path as NAME",
    "federation --output": "a path as NAME",
    "show --output": "vfl report RUN...",
    "tune --records": "vfl plan JOB --candidates FILE --records N",
    "tune -n": "vfl plan JOB --candidates FILE --records N",
    "audit --data": (
        "--public-data PARTY=FILE, for public rows; private rows would be charged in every run, so an audit simulates records"
    ),
    "--engine": "--at",
    "--inprocess": "--at inprocess",
    "--ray": "--at ray",
    "--address": "--at",
    "--federation": "--at",
    "--identity": "the environment variable VFL_IDENTITY",
    "--key": "the environment variable VFL_KEY",
    "verify --key": "--signer",
    "report --key": "--signer",
    "--threshold": "--drift",
    "--nodes": "--explain",
    "--allow-network-file-system": "--set ledger.allow_network_file_system=true",
    **dict.fromkeys(("--sklearn", "--onnx", "--sql", "--scorecard", "--tracking"), "--form"),
}
"""{earlier name of an option, after its command's name if other commands have the option: its name now}, for suggestions."""


class Group(click.Group):
    """Group of commands that suggests the present name for an unknown or earlier one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # click's signature
        """Find the command. For an unknown name, suggest the nearest known one."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            import difflib

            from vfl.errors import nearest

            above = "" if ctx.parent is None else f"{self.name} "
            earlier = {name.removeprefix(above): now for name, now in INSTEAD.items() if (" " in name) == bool(above)}
            (best,) = difflib.get_close_matches(args[0], [*earlier, *known], n=1) or ("",)
            close = f" (it is {earlier[best]})" if best in earlier else nearest(args[0], known)
            ctx.fail(f"There is no command {args[0]!r}{close}.")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Group whose commands are imported when they are called, so that --help is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # click's signature
        """Return the commands in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # click's signature
        """Import the command's module."""
        if name not in COMMANDS:
            return None
        defined = vars(importlib.import_module(f"vfl.apps.cli.{COMMANDS[name][0]}")).values()
        return next(one for one in defined if isinstance(one, click.Command) and one.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            together = {name for names in TOLD_TOGETHER for name in names}
            rows = {name: said for name, (_, said) in COMMANDS.items() if name not in together}
            last = rows.popitem()
            shared = ((", ".join(names), said) for names, said in TOLD_TOGETHER.items())
            formatter.write_dl([*rows.items(), *shared, last])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vfl")
def vfl() -> None:
    """Train one model on several parties' columns, with differential privacy.

    Start with: vfl run adult
    """


INTERRUPTED = 130
"""Exit code after Ctrl-C and SIGTERM."""


def _explained(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option. The error names the option that took its place, or the job's value."""
    from vfl.job.file import homes_of

    if error.ctx is None:
        return error
    name, words = error.option_name, error.ctx.command_path.split()[1:]
    taken = {option for parameter in error.ctx.command.params for option in parameter.opts}
    now = next((OPTIONS[key] for key in (*(f"{word} {name}" for word in words), name) if key in OPTIONS), "")
    if now and (not now.startswith("--") or now.split()[0] in taken):
        return click.UsageError(f"No such option {name!r}: it is {now}", error.ctx)
    homes = homes_of(name.lstrip("-").replace("-", "_")) if "--set" in taken else []
    if not homes:
        return error
    return click.UsageError(f"No such option {name!r}: a value of the job is given as --set {homes[0]}=...", error.ctx)


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM. A command then ends as after Ctrl-C, with exit code 130. A service catches it and ends normally."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise Terminated in the main thread. A second SIGTERM ends the process at once."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGTERM"):
        yield
        return

    def told(number: int, frame: object) -> None:
        del frame  # the signature of handlers
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Run the command line. An error of vfl.errors is printed as one line, and the exit code states its kind."""
    from vfl.apps.cli.terminal.streams import RAY_SAYS_NOTHING, outliving
    from vfl.errors import VflError

    os.environ.update(RAY_SAYS_NOTHING, VFL_ONE_RUN="1")  # vfl.launch.sites.connection
    with outliving(), terminable():
        try:
            sys.exit(vfl(prog_name="vfl", standalone_mode=False))  # a command may return its exit code
        except click.NoSuchOption as error:
            told = _explained(error)
            told.show()
            sys.exit(told.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except VflError as error:
            for line in (f"error: {error}", *getattr(error, "__notes__", ())):
                click.echo(line, err=True)
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
