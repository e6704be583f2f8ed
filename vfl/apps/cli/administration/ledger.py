"""`vfl ledger`: commands for the data owner, who sets and checks the budgets of data sets in a ledger."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfl.apps.cli import Group
from vfl.apps.cli.options import JSON, PATH, new_file, print_json, tell
from vfl.errors import BudgetError, OutputError, SpecificationError, nearest

if TYPE_CHECKING:
    from typing import Any

    from rich.table import Table

    from vfl.privacy.ledger import Balance, Head, SqliteLedger, Statement


def _a_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a folder as a ledger file. For the folder of a run, the error names the ledger file in the folder."""
    del context, parameter  # click's signature
    if path is None or not path.is_dir():
        return path
    from vfl.launch.run.checkpoint import LEDGER

    own = path / LEDGER
    held = f"the run's own ledger is {own}" if own.is_file() else f"there is no {LEDGER} in it; name a file"
    raise OutputError(f"{str(path)!r} is a folder, but a ledger is a file: {held}")


LEDGER = click.argument("path", metavar="LEDGER", type=PATH, callback=_a_file)
DATASET = click.argument("dataset", metavar="DATASET")
NETWORK = click.option(
    "--allow-network-file-system",
    is_flag=True,
    help="Allow a ledger on a network file system, where a charge may be lost.",
)
ACCOUNTANTS = {"gdp": "GaussianAccountant", "zcdp": "ZCdpAccountant", "pld": "PldAccountant"}
STOPPED_EARLY = (
    "stopped early: finished, but released values may have decided the number of releases (a resumed run, a lost party, "
    "released smoothness that sets draws or noise), so its certificate states the ε reserved"
)
_CAP = "vfl ledger cap LEDGER {} --epsilon E --delta D"


@click.group("ledger", cls=Group, no_args_is_help=True)
def command() -> None:
    """Set, show and check the budgets in a ledger. A party ledger is a ledger too.

    LEDGER is the ledger's file. DATASET is the name that jobs give as their dataset.
    """


@command.command("show", short_help="Show the ε spent, reserved and left, and each run.")
@LEDGER
@click.argument("dataset", metavar="[DATASET]", required=False)
@click.option(
    "--accountant",
    "way",
    type=click.Choice(tuple(ACCOUNTANTS)),
    help="Recompute ε of DATASET: gdp is exact for Gaussian releases, zcdp accepts mixes, pld computes numerically.",
)
@JSON
def show(path: Path, dataset: str | None, way: str | None, *, as_json: bool) -> None:
    """Show the ε spent, reserved and left of each data set, and each run. Works for exhausted budgets too.

    With --accountant, recompute ε from every charge of DATASET with another accountant instead. The result is valid only for
    charges that were fixed beforehand. If charges were chosen in view of earlier ones, only the ledger's cap on ε is a valid
    guarantee.
    """
    from vfl.privacy.ledger import SqliteLedger

    if way is not None and dataset is None:
        raise click.UsageError("--accountant needs a DATASET")

    ledger = SqliteLedger(path, readonly=True)
    balances, head = ledger.show(), ledger.head()
    if dataset is not None:
        balances = (_named(balances, dataset),)
    if way is not None:
        _print_replay(ledger, balances[0], way, as_json=as_json)
        return
    if as_json:
        print_json({"ledger": str(path), "head": dataclasses.asdict(head), "datasets": list(map(_plain, balances))})
        return
    for balance in balances:
        _print_balance(balance)
    if not balances:
        click.echo("no data set has a cap yet")
    click.echo(f"{head.seq} entries, chain head {head.hash}")


@command.command("cap", short_help="Set the cap of a data set; creates a missing ledger.")
@LEDGER
@DATASET
@click.option("--epsilon", type=float, required=True, metavar="E", help="ε > 0 of all releases on it together.")
@click.option("--delta", type=float, required=True, metavar="D", help="δ of the cap, between 0 and 1.")
@click.option(
    "--accountant",
    "accounting",
    type=click.Choice(["gdp", "zcdp"]),
    help="Accountant: gdp is exact for Gaussian releases, zcdp suits mixes with many selections. "
    "By default, the first job decides. The first reservation fixes the accountant.",
)
@click.option("--yes", is_flag=True, help="Confirm a δ different from the data set's.")
@NETWORK
@JSON
def cap(
    path: Path,
    dataset: str,
    epsilon: float,
    delta: float,
    accounting: str | None,
    *,
    yes: bool,
    allow_network_file_system: bool,
    as_json: bool,
) -> None:
    """Set or change the cap of DATASET. Creates LEDGER if it does not exist.

    A change after releases is marked in the ledger, and every later certificate flags it.
    """
    from vfl.privacy.ledger import Accounting, SqliteLedger

    ledger = SqliteLedger(path, allow_network_file_system=allow_network_file_system)
    way = Accounting(accounting) if accounting else None
    ledger.set_cap(dataset, epsilon=epsilon, delta=delta, accounting=way, change_delta=yes)
    balance = _named(ledger.show(), dataset)
    if as_json:
        print_json(_plain(balance))
        return
    _print_balance(balance)


@command.command("verify", short_help="Check that no entry was altered.")
@LEDGER
@new_file("A new file for every entry with its hash, as JSON.")
@click.option(
    "--head", "noted", metavar="SEQ:HASH", help="A head noted elsewhere; an older copy lacks this head and fails."
)
@JSON
def verify(path: Path, noted: str | None, output: Path | None, *, as_json: bool) -> None:
    """Recompute the whole chain and all sums from the first entry. An error names the first wrong entry."""
    from vfl.base.writing import write_whole
    from vfl.privacy.ledger import SqliteLedger

    ledger = SqliteLedger(path, readonly=True)
    head = ledger.verify()
    if noted is not None:
        ledger.require(_head(noted))
    revisions = [str(revision) for balance in ledger.show() for revision in balance.revisions]
    if output is not None:
        write_whole(output, ledger.export() + "\n")
    found = {"ledger": str(path), "ok": True, "head": dataclasses.asdict(head), "through": noted}
    tell(
        found | {"revisions": revisions},
        f"ok: {head.seq} entries follow from each other, and every sum from its charges; head {head.hash}",
        *([] if noted is None else [f"ok: the chain contains the head {noted}"]),
        *(f"note: {revision}" for revision in revisions),
        as_json=as_json,
    )


@command.command("settle", short_help="Free the unused reservation of a run that will not be resumed.")
@click.argument("run", metavar="RUN")
@click.option(
    "--ledger",
    "path",
    type=PATH,
    callback=_a_file,
    metavar="FILE",
    help="Ledger; RUN is then the id of a run, as vfl ledger show prints it.",
)
@NETWORK
@JSON
def settle(run: str, path: Path | None, *, allow_network_file_system: bool, as_json: bool) -> None:
    """Close the reservation of RUN, the folder of a run that will not be resumed.

    Charges remain, and the uncharged part is free for other runs. Afterwards the run cannot be resumed, and a process
    that still works on it can no longer charge anything.
    """
    from vfl.privacy.ledger import SqliteLedger

    if path is None:
        statement = _settled_folder(Path(run), allow_network_file_system=allow_network_file_system)
    else:
        ledger = SqliteLedger(path, allow_network_file_system=allow_network_file_system)
        runs = ((balance.dataset, found.job) for balance in ledger.show() for found in balance.runs if found.run == run)
        dataset, job = next(runs, (None, ""))
        if dataset is None:
            raise SpecificationError(
                f"run {run!r} reserved nothing in the ledger {str(ledger.path)!r}: vfl ledger show prints the ids"
            )
        statement = _settled(ledger, dataset, run, job)
    if statement is None:
        tell(None, "nothing was charged: the whole reservation is free again", as_json=as_json)
        return
    tell(
        dataclasses.asdict(statement),
        f"{statement.releases} releases stay charged, ε = {statement.spent:.4g} of ε = {statement.reserved:.4g} reserved "
        f"at δ = {statement.delta:.3g}; the rest is free again",
        as_json=as_json,
    )


def _settled_folder(folder: Path, *, allow_network_file_system: bool) -> Statement | None:
    """Settle the run in a folder. The run's log names the ledger; this process holds the lock of the log while it settles."""
    from vfl.job import file as jobfile
    from vfl.launch.run import checkpoint
    from vfl.launch.run.folder import check_folder
    from vfl.privacy.ledger import SqliteLedger

    check_folder(folder)
    job, _ = jobfile.read(folder / jobfile.NAME)
    with checkpoint.Checkpoint(folder):
        start, budget, _ = checkpoint.read(folder, job)
        if budget.ledger is None:
            raise SpecificationError(
                f"the run in {str(folder)!r} kept its budget in memory: there is nothing to settle"
            )
        allowed = allow_network_file_system or budget.allow_network_file_system
        ledger = SqliteLedger(budget.ledger, allow_network_file_system=allowed)
        return _settled(ledger, budget.account(job), budget.run, start.job, budget.head)


def _settled(ledger: SqliteLedger, dataset: str, run: str, job: str, head: Head | None = None) -> Statement | None:
    """Take a run over, so that its process can no longer charge, and settle the run. Return None if nothing was charged."""
    from parties.ledger import account_of
    from vfl.privacy.ledger import DatasetBudget

    found = next((r for r in _named(ledger.show(), dataset).runs if r.run == run), None)
    if found is not None and found.status != "open":
        raise SpecificationError(f"run {run!r} is {found.status}: there is nothing left to settle")
    if dataset.startswith(account_of("")):
        raise BudgetError(
            f"{dataset!r} is the account of a party ledger, where all of run {run!r} counts, since the releases of other "
            "parties depend on this party's records too: settle it in the coordinator's ledger"
        )
    reservation = DatasetBudget(ledger, dataset).resume(run, job=job, head=head)
    if reservation.charged():
        return reservation.settle()
    reservation.refund()
    return None


def _named(balances: tuple[Balance, ...], dataset: str) -> Balance:
    for balance in balances:
        if balance.dataset == dataset:
            return balance
    there = [balance.dataset for balance in balances]
    held = f"it has {', '.join(map(repr, there))}" if there else f"set a cap with: {_CAP.format(dataset)}"
    raise SpecificationError(f"the ledger has no data set {dataset!r}{nearest(dataset, there)}; {held}")


def _print_replay(ledger: SqliteLedger, balance: Balance, way: str, *, as_json: bool) -> None:
    """Print ε of a data set at the cap's δ, by another accountant."""
    from vfl.base.types import Adjacency
    from vfl.privacy import accountants

    dataset, delta, releases = balance.dataset, balance.delta, sum(run.releases for run in balance.runs)
    accountant = getattr(accountants, ACCOUNTANTS[way])(Adjacency.REPLACE_ONE)
    epsilon = ledger.replay(dataset, accountant).epsilon(delta) if releases else 0.0
    tell(
        {"dataset": dataset, "accountant": way, "epsilon": epsilon, "delta": delta, "releases": releases}
        | {"spent": balance.spent, "cap": balance.epsilon},
        f"{releases} releases on {dataset!r}: ε = {epsilon:.6g} at δ = {delta:.3g} by {way}",
        f"the ledger counts ε = {balance.spent:.6g} of ε = {balance.epsilon:.6g}",
        as_json=as_json,
    )


def _head(text: str) -> Head:
    from vfl.privacy.ledger import Head

    seq, _, digest = text.partition(":")
    if not seq.isdigit() or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise SpecificationError(f"a head is SEQ:HASH, an entry's number and 64 hexadecimal digits, not {text!r}")
    return Head(int(seq), digest)


def _plain(balance: Balance) -> dict[str, Any]:
    return dataclasses.asdict(balance) | {"adjacency": str(balance.adjacency)}


def _print_balance(balance: Balance) -> None:
    from rich.console import Console

    console = Console(highlight=False, color_system=None)  # `outliving` would print the codes of colours as text
    lines = (balance.title, balance.sums, *map(str, balance.revisions))
    console.print("\n  ".join(lines), markup=False, soft_wrap=True)
    if not balance.runs:
        return
    table = _table(balance)
    wide = Console(width=1000).measure(table).maximum
    if any(run.status == "stopped early" for run in balance.runs):
        click.echo(f"  {STOPPED_EARLY}")
    if wide <= console.width:
        console.print(table)
        return
    for run in balance.runs:  # a table too wide for the terminal would break the ids, which users copy
        words = (
            f"job {run.job[:12]}, {run.status}, ε {run.spent:.4g} of {run.reserved:.4g} spent, {run.releases} releases"
        )
        console.print(f"  {run.run}\n    {words}", markup=False, soft_wrap=True)


def _table(balance: Balance) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("run", "job", "status", "ε reserved", "ε spent", "releases"):
        table.add_column(column, justify="left" if column in ("run", "job", "status") else "right", no_wrap=True)
    for run in balance.runs:
        cells = (run.run, run.job[:12], run.status, f"{run.reserved:.4g}", f"{run.spent:.4g}", str(run.releases))
        table.add_row(*map(Text, cells))
    return table
