"""Whether models of clicks with sampled negatives count them: scores of two articles by what was shown before.

    python benchmarks/clicks.py

Generates a log of clicks, a few of whose articles get most of them, prepares it with --negatives 4, fits GRU4Rec and MBCAL,
and lets a simulator of the same store judge both. About two minutes on one core. docs/clicks.md has the results.
"""

from __future__ import annotations

import csv
import random
import tempfile
from collections import Counter
from pathlib import Path

import mbcal
from mbcal.evaluation.models import evaluate_models
from mbcal.evaluation.simulators import fit_simulator


def write_log(path: Path) -> list[str]:
    """Write the clicks of 1,200 users on 60 articles that are always there; returns the articles, most clicked first."""
    random_ = random.Random(2)  # noqa: S311 (data, not secrets)
    popularity = [random_.random() ** 6 for _ in range(60)]
    clicks: Counter[str] = Counter()
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("user", "article", "ts", "session"))
        session = 0
        for user in range(1200):
            for _ in range(random_.randint(1, 4)):
                session, time = session + 1, 1_772_352_000 + random_.randint(0, 10 * 86_400)
                for article in random_.choices(range(60), popularity, k=random_.randint(1, 4)):
                    writer.writerow((f"u{user}", f"a{article}", time, f"s{session}"))
                    clicks[f"a{article}"] += 1
                    time += random_.randint(5, 200)
    return [article for article, _ in clicks.most_common()]


def print_scores(name: str, agent: mbcal.Agent, articles: list[str]) -> None:
    """Print the scores of the most clicked article and of the 26th, by what the session has shown."""
    passed = [(article, "none") for article in articles[30:34]]
    click = [(articles[1], "click")]
    for title, shown in (("start", []), ("click", click), ("4 none", passed), ("click, 4 none", click + passed)):
        score = {entry.item: entry.score for entry in agent.rank([], [articles[0], articles[25]], shown=shown)}
        print(f"{name:8} {title:14} {score[articles[0]]:.3f} {score[articles[25]]:.3f}")


def main() -> None:
    """Print the scores and the simulator's verdict."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        articles = write_log(folder / "clicks.csv")
        columns = {"user": "user", "item": "article", "time": "ts", "session": "session"}
        store = mbcal.prepare(folder / "clicks.csv", folder / "store", mbcal.SessionConfig(negatives=4), **columns)
        agents = [mbcal.MBCAL(device="cpu").fit(store), mbcal.GRU4Rec(device="cpu").fit(store)]
        for agent in agents:
            print_scores(agent.name, agent, articles)
        fit_simulator(store, folder / "simulator", device="cpu")
        comparison = evaluate_models(agents, [folder / "simulator"], store, device="cpu")
        for row in comparison.rows:
            print(f"{row.model:8} reward per session {row.reward.mean:.2f}")
        [trust] = comparison.trust.values()
        print(trust.sentence)


if __name__ == "__main__":
    main()
