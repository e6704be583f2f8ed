"""Two companies with one file each align their records, train, verify the model, and apply it to new customers.

Run it with: python -m vfl.examples.companies [FOLDER]

A bank has a Parquet file and knows who repaid; a telco has a CSV file. Their customers overlap in part, and their rows are
in different orders. The process of each party opens that party's file, and no id leaves its owner in clear. Two real companies
would run the same steps; this script runs them on one machine with generated files.

The script writes files and run to FOLDER, which must be new, or to a temporary folder that it removes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import vfl
from vfl import examples

if TYPE_CHECKING:
    from pathlib import Path

BOUNDS = {"income": (0, 200_000), "age": (18, 100), "calls": (0, 500), "data_mb": (0, 100_000)}
SHARES = {"bank": 0.9, "telco": 0.8}
"""Share of all customers that each company has. About 72 % are customers of both."""


def write_files(folder: Path, customers: int, seed: int) -> tuple[dict[str, Path], dict[str, int]]:
    """Write one file per company; return {company: file} and the true labels, {customer: 1 if the loan defaulted}."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    columns: dict[str, Any] = {name: rng.uniform(low, high, customers) for name, (low, high) in BOUNDS.items()}
    score = 4e-5 * columns["income"] - 0.06 * columns["age"] + 0.008 * columns["calls"] - 2.0
    columns["default"] = (rng.random(customers) < 1.0 / (1.0 + np.exp(-score))).astype(int)
    columns["customer"] = np.array([f"C{seed}{k:06d}" for k in range(customers)])

    def own(company: str, *names: str) -> pa.Table:
        rows = rng.permutation(customers)[: int(SHARES[company] * customers)]
        return pa.table({name: columns[name][rows] for name in ("customer", *names)})

    files = {"bank": folder / "bank.parquet", "telco": folder / "telco.csv"}
    pyarrow.parquet.write_table(own("bank", "income", "age", "default"), files["bank"])
    pyarrow.csv.write_csv(own("telco", "calls", "data_mb"), files["telco"])
    return files, dict(zip(columns["customer"].tolist(), columns["default"].tolist(), strict=True))


def main(folder: Path, customers: int = 12_000) -> None:
    """Go from two files to predictions, and print each step."""
    files, _ = write_files(folder / "now", customers, seed=1)
    job = vfl.Job(
        name="companies",
        partition=vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["calls", "data_mb"]}, ("bank", "default")),
        id="customer",
        bounds=BOUNDS,
        loss="logistic",
        penalty=vfl.L2(1e-4),
        evaluation=vfl.Evaluation(holdout=0.2),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-9),
    )
    print("Two files, in different orders, whose customers overlap in part:")
    for company, file in files.items():
        print(f"  {company:<6} {int(SHARES[company] * customers):,} customers in {file.name}")

    print("\nPlanned for 8,000 common customers, before any file is opened:")
    print(vfl.plan(job, 8_000))

    print("\nAligned, trained, and measured on the held-out fifth, all within ε = 1.")
    # Each company keeps the index of its common customers in a folder of its own.
    owned = {company: vfl.Source(file, index=folder / f"index-{company}") for company, file in files.items()}
    result = vfl.train(job, owned, output=folder / "run")
    print(f"  both have {result.certificate.n_records:,} customers: this number is public from here on")
    print(result.certificate)
    print(result.findings["held out"])

    print("\nVerified from model, job and certificate; vfl verify FOLDER also checks the log and the ledger.")
    kept = vfl.Result.load(folder / "run")
    print(kept.verify())

    print("\nApplied to new customers. Each company has only its own part of the model, and its own file.")
    later, truth = write_files(folder / "later", customers // 4, seed=2)
    predicted = vfl.predict(kept.save_parts(folder / "parts"), later)
    ids = predicted.ids or ()
    right = [truth[customer] == label for customer, label in zip(ids, predicted.labels, strict=True)]
    print(
        f"  {len(ids):,} customers of both, {sum(right) / len(right):.0%} predicted correctly (generated labels are known)"
    )


if __name__ == "__main__":
    examples.in_folder(main)
