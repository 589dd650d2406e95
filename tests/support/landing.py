"""A world whose first page offers a bait, which pays at once and spoils the pages after it; requests are named at will."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from mbcal import Behaviours, Catalog
from mbcal.agents import Agent
from mbcal.agents.popular import Popular
from mbcal.data.user_split import stable_hash
from mbcal.decision_log import Decision, Feedback, Record
from mbcal.decision_log.join import join_sessions

PAGES = 6
CATALOG, BEHAVIOURS = Catalog(("good", "bait", "plain")), Behaviours(("skip", "click"), (0.0, 1.0))
MINUTE = 60_000_000
LIVE, CANARY = "v000001", "v000002"

Names = Callable[[int, int], tuple[str, str]]
"""User and session that the request of a visit (number, page) names; empty if it does not."""


def whole(visit: int, _: int) -> tuple[str, str]:
    """Every page names both."""
    return f"u{visit}", f"s{visit}"


def landing(visit: int, page: int) -> tuple[str, str]:
    """The first page knows the user, the others the session as well."""
    return f"u{visit}", f"s{visit}" if page else ""


def named_first(visit: int, page: int) -> tuple[str, str]:
    """The first page names both, the others nothing."""
    return ("", "") if page else (f"u{visit}", f"s{visit}")


def halves(visit: int, page: int) -> tuple[str, str]:
    """The first page knows the user alone, the others the session alone."""
    return ("", f"s{visit}") if page else (f"u{visit}", "")


def known_by_user(visit: int, _: int) -> tuple[str, str]:
    """No page has a session."""
    return f"u{visit}", ""


def login(visit: int, page: int) -> tuple[str, str]:
    """Every page has the same session; the user is known from the second page on."""
    return f"u{visit}" if page else "", f"s{visit}"


def logout(visit: int, page: int) -> tuple[str, str]:
    """Every page has the same session; the user is known on the first page only."""
    return "" if page else f"u{visit}", f"s{visit}"


def session_of_a_page(visit: int, page: int) -> tuple[str, str]:
    """Every page has a session of its own."""
    return f"u{visit}", f"s{visit}-{page}"


def anonymous_session_of_a_page(visit: int, page: int) -> tuple[str, str]:
    """Every page has a session of its own, and no user."""
    return "", f"s{visit}-{page}"


def visits(
    count: int,
    names: Names,
    *,
    first: str = "good",
    pages: int = PAGES,
    bait_page: int = 0,
    canary: bool = False,
    late: bool = False,
) -> Iterator[Record]:
    """Visits a thousand minutes apart. One page offers `good` and `bait`, the others `plain`.

    A version chooses `first` with probability 0.75. `good` and `plain` are clicked with probability 0.4, `bait` always;
    after a bait everything is clicked with probability 0.05. The server knows what was shown in a session; where every page
    has an anonymous one, requests say what was shown in the visit.

    Args:
        count: Number of visits.
        names: What requests name.
        first: The item that the live version ranks first.
        pages: Pages of a visit, one item each.
        bait_page: The page that offers the bait.
        canary: Whether a third of users, or of sessions without one, gets v000002, which ranks the bait first.
        late: Whether all feedback comes after the last page, so that the server never knows what was shown.
    """
    draw = np.random.default_rng(0)
    for visit in range(count):
        shown: list[tuple[str, str]] = []
        in_session: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for page in range(pages):
            user, session = names(visit, page)
            is_canary = canary and bool(user or session) and stable_hash(user or session, 0, "landing") % 3 == 0
            best, item, propensity = "bait" if is_canary else first, "plain", 1.0
            if page == bait_page:
                is_best = draw.random() < 0.75
                item, propensity = best if is_best else ({"good", "bait"} - {best}).pop(), 0.75 if is_best else 0.25
            rate = 0.05 if ("bait", "click") in shown else 1.0 if item == "bait" else 0.4
            behaviour = "click" if draw.random() < rate else "skip"
            name, time = f"d{visit}-{page}", (1000 * visit + page + 1) * MINUTE
            answered = (1000 * visit + pages + 1) * MINUTE if late else time
            said = list(shown) if names is anonymous_session_of_a_page else list(in_session[session])
            yield Decision(
                id=name,
                time=time,
                session=session,
                user=user,
                step=len(said),
                version=CANARY if is_canary else LIVE,
                epsilon=0.5,
                history=[],
                shown=said,
                candidates=["good", "bait"] if page == bait_page else ["plain"],
                items=[item],
                propensities=[propensity],
                repeats=True,
            )
            yield Feedback(name, item, behaviour, answered + 1, f"f-{name}")
            shown.append((item, behaviour))
            if session and not late:
                in_session[session].append((item, behaviour))


def agent_for(item: str) -> Agent:
    """An agent that ranks this item first."""
    joined = join_sessions(visits(40, whole, first=item), CATALOG, BEHAVIOURS, horizon=PAGES, history=PAGES)
    return Popular().fit(joined.sessions)
