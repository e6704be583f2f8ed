"""Study of partitions: effect of the ownership of columns on the model and its cost.

Run it with: python -m vfl.examples.partitions

The columns of scikit-learn's breast cancer data are assigned at random to one, three and ten parties, several times each, and
one job is trained on each assignment. The noise is seeded to make the study repeatable; its output is therefore not private,
but the data are public. A step of coordinate descent is the same for every owner of the column. The assignment changes the
order of the steps, not the expected accuracy. The number of messages grows with the number of parties.
"""

from __future__ import annotations

import dataclasses
import statistics

import vfl
from vfl import examples

PARTIES = (1, 3, 10)
DEALS = 3


def main() -> None:
    """Print one line per number of parties."""
    job, _ = vfl.Job.from_toml(examples.job_file("breast_cancer"))
    table = examples.table("breast_cancer")
    truth = table["target"].to_numpy()
    print("accuracy on the records trained on:\nparties  messages    mean  lowest  highest")
    for parties in PARTIES:
        scores, trips = [], 0
        for deal in range(DEALS):
            partition = vfl.FeaturePartition.random(job.partition.features, parties, label="target", seed=deal)
            privacy = vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(deal))
            dealt = dataclasses.replace(job, partition=partition, privacy=privacy, evaluation=None)
            trips = vfl.plan(dealt, table.num_rows).messages
            result = vfl.train(dealt, table)
            scores.append(float((result.predict(table) == truth).mean()))
        print(
            f"{parties:7}  {trips:11}  {statistics.mean(scores):6.3f}  {min(scores):6.3f}  {max(scores):7.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
