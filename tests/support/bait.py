"""A world with a bait: it pays at once and spoils the rest of the visit. And a log of it, with or without names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mbcal import Behaviours, Catalog
from mbcal.agents import Agent
from mbcal.agents.popular import Popular
from mbcal.decision_log import Decision, Feedback, Record
from mbcal.decision_log.join import join_sessions

STEPS = 6
CATALOG, BEHAVIOURS = Catalog(("good", "bait")), Behaviours(("skip", "click"), (0.0, 1.0))
MINUTE = 60_000_000


def visits(
    users: int, *, session: bool = False, user: bool = True, shown: bool = True, first: str = "good", seed: int = 0
) -> Iterator[Record]:
    """Visits of six steps: an item is chosen from two, `first` with probability 0.75 (an epsilon of 0.5), by v000001.

    `good` is clicked with probability 0.4, `bait` always; after a bait everything is clicked with probability 0.05.

    Args:
        users: Number of users, one visit each.
        session: Whether requests name their session.
        user: Whether they name their user.
        shown: Whether they say what was shown.
        first: The item that the version ranks first.
        seed: Seed of all noise.
    """
    draw = np.random.default_rng(seed)
    for number in range(users):
        steps: list[tuple[str, str]] = []
        for step in range(STEPS):
            item = first if draw.random() < 0.75 else ({"good", "bait"} - {first}).pop()
            spoilt = any(shown_item == "bait" for shown_item, _ in steps)
            rate = 0.05 if spoilt else 1.0 if item == "bait" else 0.4
            behaviour = "click" if draw.random() < rate else "skip"
            name, time = f"d{seed}-{number}-{step}", (1000 * number + step + 1) * MINUTE
            said = list(steps) if shown or session else []
            yield Decision(
                id=name,
                time=time,
                session=f"s{number}" if session else "",
                user=f"u{number}" if user else "",
                step=len(said),
                version="v000001",
                epsilon=0.5,
                history=[],
                shown=said,
                candidates=["good", "bait"],
                items=[item],
                propensities=[0.75 if item == first else 0.25],
                repeats=True,
            )
            yield Feedback(name, item, behaviour, time + 1, f"f-{name}")
            steps.append((item, behaviour))


def agent_for(item: str) -> Agent:
    """An agent that ranks this item first."""
    joined = join_sessions(visits(40, session=True, first=item), CATALOG, BEHAVIOURS, horizon=STEPS, history=STEPS)
    return Popular().fit(joined.sessions)
