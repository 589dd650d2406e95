"""Whether an advantage fades in Growing Batch-RL: rounds in a world so small that its best answer is known.

    python benchmarks/fading.py [--methods mbcal mbcal+counterfactual=behaviours] [--seeds 0] [--rounds 10]
        [--output docs/results/toy-fading.csv]

A key item earns nothing and makes the following items worth more; sweet items earn a little at once (`DelayedPrize` in
tests/support/toys.py). The best policy earns 15 per session, the myopic one 6. Every round is collected by the present
policy, which then hardly varies: so logged behaviours tell which item must have been shown, and an advantage that compares
with the same behaviours vanishes. All settings are the defaults. Decision 25 has `--methods mbcal --seeds 0 1 2`, and
the behaviours with seed 0.

A seed whose rows are in the output is not run again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from measurements import Measurements

from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.context import ExperimentContext
from mbcal.evaluation.experiment.growing_batch import growing_batch

sys.path.append(str(Path(__file__).parent.parent))

from tests.support.toys import BEST, DelayedPrize, logged, starts

METHODS = ("mbcal", "mbcal+counterfactual=behaviours", "mbcal-no-vr", "mbcal-plan")
ROUND_SESSIONS, TEST_SESSIONS = 1_200, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
    options = parser.parse_args()
    settings = experiment_config({"rounds": options.rounds, "round_sessions": ROUND_SESSIONS})
    test = starts(TEST_SESSIONS, seed=5)
    context = ExperimentContext(settings, logged(ROUND_SESSIONS), test, {"toy": DelayedPrize()}, (), "cpu")
    table = Measurements(options.output, ("data", "method", "seed", "round"), ("reward", "best"))
    table.record(
        "toy", "cpu", "DelayedPrize", {"methods": options.methods, "seeds": options.seeds, "rounds": options.rounds}
    )
    for method in options.methods:
        for seed in options.seeds:
            if table.has(data="toy", method=method, seed=seed, round=options.rounds):
                continue
            for entry in growing_batch(context, method, seed).record["rounds"]:
                table.add(data="toy", method=method, seed=seed, round=entry["round"], reward=entry["mean"], best=BEST)


if __name__ == "__main__":
    main()
