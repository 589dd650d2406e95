"""GRU4Rec: predict the next behaviour, and rank by the reward expected of it.

Hidasi et al., *Session-based Recommendations with Recurrent Neural Networks* (ICLR 2016), in the form that is a baseline of
the MBCAL paper: the network of the environment model without masking, ranked by the reward it expects of the next step
alone.

Deviations from Hidasi et al.: (1) it predicts the behaviour on an item that is shown, not which item comes next, since
candidates are given; (2) likelihood instead of a pairwise ranking loss; (3) the user's history is read by an encoder of its
own.
"""

from __future__ import annotations

from torch import nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.values import reward_term, value_term
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import NetScorer


class GRU4Rec(Agent):
    """Score = expected instant reward. The myopic baseline; in Growing Batch-RL it collects without exploration."""

    name = "gru4rec"
    explores = False

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net, len(domain.behaviours))
        return {"behaviour": RecurrentNet(*shape, domain.n_users, domain.fields)}

    def learn(self, context: FitContext) -> None:
        context.fit_behaviours("behaviour")

    def build_scorer(self) -> NetScorer:
        terms = {"instant": reward_term(self.nets["behaviour"], self.domain.behaviours)}
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)


class GRU4RecEpsilon(GRU4Rec):
    """Score = expected instant reward; in Growing Batch-RL it explores like the other methods."""

    name = "gru4rec-eps"
    explores = True


class GRU4RecRegression(Agent):
    """Score = reward, regressed by squared error instead of expected from a distribution of behaviours.

    The MBCAL paper reports in passing that this drops clearly; docs/results.md has what was measured.
    """

    name = "gru4rec-regression"
    explores = False

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net, domain.n_users)
        return {"reward": ValueNet(*shape, horizon=domain.horizon, fields=domain.fields)}

    def learn(self, context: FitContext) -> None:
        context.fit_values("reward", context.label("rewards", lambda batch: batch.rewards))

    def build_scorer(self) -> NetScorer:
        terms = {"instant": value_term(self.nets["reward"])}
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)
