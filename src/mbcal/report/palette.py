"""Colours by role: a strong one for MBCAL, one for other methods of ours, grey for baselines; the same in every figure."""

from __future__ import annotations

from typing import Literal

from mbcal.agents import AGENTS
from mbcal.environments.newsfeed import oracle
from mbcal.evaluation.comparison import LOG_ROW
from mbcal.evaluation.experiment.context import split_agent_name

Role = Literal["mbcal", "ours", "baseline", "reference"]

COLOURS: dict[Role, str] = {"mbcal": "#1f5fd0", "ours": "#c77700", "baseline": "#7a828e", "reference": "#7a828e"}
"""By role; the page has them as CSS variables, lighter on a dark background."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 5")
"""Line styles that tell methods of one role apart, as SVG writes them; labels stand at the ends of lines."""
REFERENCES = (oracle.NAME, LOG_ROW, "random")


def role(agent: str) -> Role:
    """Return the role of an agent: variants of MBCAL and methods that mbcal does not have are ours."""
    method = split_agent_name(agent)[0]
    if agent == "mbcal":
        return "mbcal"
    if agent in REFERENCES:
        return "reference"
    return "baseline" if method in AGENTS and not method.startswith("mbcal") else "ours"


def styles(agents: list[str]) -> dict[str, tuple[Role, str]]:
    """Return role and dash of every agent; agents of one role have different dashes as far as there are any."""
    seen: dict[Role, int] = {}
    found = {}
    for agent in agents:
        own = role(agent)
        found[agent] = (own, DASHES[seen.get(own, 0) % len(DASHES)])
        seen[own] = seen.get(own, 0) + 1
    return found
