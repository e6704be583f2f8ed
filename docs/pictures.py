"""Regenerate the pictures of the docs from the programs that they show.

Run it with: python docs/pictures.py [NAME...]

Needs matplotlib, and chromium on PATH, which photographs the pages. Noise is fresh, so numbers differ from the last pictures.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet

import vfl
from vfl import examples

HERE = Path(__file__).parent / "pictures"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
LINEAR = {"education": (1, 16), "hours_per_week": (1, 99), "age": (17, 90), "capital_loss": (0, 4400)}


def jobs() -> dict[str, vfl.Job]:
    """Return the job of the bundled example and one of four columns with intervals, both for the data set 'census'."""
    adult, _ = vfl.Job.from_toml(examples.job_file("adult"))
    private = dataclasses.replace(adult.privacy, delta=1e-9)
    parties = {"employer": ["education", "hours_per_week"], "registry": ["age"], "bank": ["capital_loss"]}
    return {
        "adult": dataclasses.replace(adult, dataset="census", privacy=private),
        "intervals": vfl.Job(
            name="intervals",
            dataset="census",
            partition=vfl.FeaturePartition(parties, label=("bank", "over_50k")),
            bounds=LINEAR,
            privacy=vfl.Privacy(epsilon=1.0, delta=1e-9),
            intervals=True,
        ),
    }


def later(table: pa.Table) -> pa.Table:
    """Return records that drifted: a sample of 10,000 in which older people are more frequent."""
    age = table["age"].to_numpy()
    rows = np.random.default_rng(0).choice(len(age), 10_000, replace=False, p=age**3.0 / (age**3.0).sum())
    return table.take(np.sort(rows))


def command(*words: str) -> None:
    """Run vfl in the current folder; drift, exit code 7, is an outcome here."""
    done = subprocess.run([sys.executable, "-m", "vfl", *words], check=False)  # noqa: S603 — our own program
    if done.returncode not in (0, 7):
        raise SystemExit(done.returncode)


def only(page: str, heading: str) -> str:
    """Write the page's section with this heading to a page of its own, and return its name."""
    head, *sections = Path(page).read_text(encoding="utf-8").split("<section>")
    head = head[: head.index("<body>") + len("<body>")]
    (kept,) = [section for section in sections if section.startswith(f"<h2>{heading}</h2>")]
    name = f"{heading.replace(' ', '-')}-{page}"
    Path(name).write_text(
        f'{head}<main style="padding-top: 0"><section>{kept.split("</main>")[0]}</main></body></html>', encoding="utf-8"
    )
    return name


def photograph(page: str, name: str, width: int, height: int) -> None:
    """Take a picture of a page at an address."""
    browser = next((found for one in CHROMIUM if (found := shutil.which(one))), None)
    if browser is None:
        raise SystemExit(f"install one of {', '.join(CHROMIUM)}, which takes pictures of pages without a screen")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000")
    size, file = f"--window-size={width},{height}", f"--screenshot={HERE / name}"
    subprocess.run([browser, *options, size, file, page], check=True, capture_output=True)  # noqa: S603
    print(name)


def pages(wanted: set[str], table: pa.Table) -> None:
    """Take the pictures of all pages that are wanted."""
    here = Path.cwd().as_uri()
    if "report" in wanted:
        command("report", "runs/adult", "--output", "report.html")
        photograph(f"{here}/report.html", "report.png", 1000, 1000)
        photograph(f"{here}/{only('report.html', 'Curves')}", "measures.png", 1000, 1050)
        photograph(f"{here}/{only('report.html', 'Releases against their noise')}", "releases.png", 1000, 470)
    if "intervals" in wanted:
        command("report", "runs/intervals", "--output", "intervals.html")
        photograph(f"{here}/{only('intervals.html', 'Coefficients')}", "intervals.png", 1000, 580)
    if "plan" in wanted:
        command("plan", "adult", "--plot", "plan.html")
        photograph(f"{here}/plan.html", "plan.png", 1000, 900)
    if "drift" in wanted:
        pa.parquet.write_table(table, "training.parquet")
        pa.parquet.write_table(later(table), "today.parquet")
        words = ("--epsilon", "0.6", "--delta", "1e-9", "--ledger", "ledger.db", "--dataset", "census")
        records = ("--training", "training.parquet", "--data", "today.parquet")
        command("monitor", "runs/adult", *records, *words, "--output", "drift.html")
        photograph(f"{here}/drift.html", "drift.png", 1000, 1000)
    if "ui" in wanted:
        server = subprocess.Popen([sys.executable, "-m", "vfl", "ui", "."], stdout=subprocess.PIPE, text=True)
        try:
            address = server.stdout.readline().split()[-1]  # type: ignore[union-attr]
            photograph(address, "ui-overview.png", 1000, 780)
            photograph(f"{address}run/runs/adult", "ui-run.png", 1000, 800)
            photograph(f"{address}ledger/ledger.db", "ui-ledger.png", 1000, 560)
        finally:
            server.terminate()
            server.wait()


def main(wanted: set[str]) -> None:
    """Train both models in a temporary folder, and take the pictures."""
    mpl.use("agg")
    HERE.mkdir(exist_ok=True)
    table = examples.table("adult")
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "census", "runs").mkdir(parents=True)
        os.chdir(Path(scratch, "census"))
        shutil.copy(examples.job_file("adult"), "adult.toml")
        vfl.Ledger("ledger.db").open().set_cap("census", epsilon=3.0, delta=1e-9)
        runs = {name: vfl.train(job, table, ledger="ledger.db", output=f"runs/{name}") for name, job in jobs().items()}
        if "curves" in wanted:
            figure = runs["adult"].curves("runs/adult").plot()
            figure.savefig(HERE / "curves.png", bbox_inches="tight")
            print("curves.png")
        pages(wanted, table)
        os.chdir(HERE)


if __name__ == "__main__":
    main(set(sys.argv[1:]) or {"report", "intervals", "plan", "curves", "drift", "ui"})
