"""A generated newsfeed whose truth is known.

The paper's own feed was never published. This one has its traits and nothing hidden: users whose interests drift towards
what they read, who tire of a topic that repeats, and items that please now and cost later (bait) or the reverse. Every
constant stands in `NewsfeedConstants`, every draw comes from the seed.

One step, with z the item's topics (they sum to 1) and K topics in all::

    utility    u = base + bias + interest <w, z> - satiation <s, z> + appeal + bait_now * bait + mood      (levels of dwell)
    behaviour  P(level > k) = sigmoid((u - k - 1/2) / noise), k = 0 … 10                                    (12 levels)
    reward     level + 1
    then       w += drift * e * (z - w)          e = level / 11: interests move towards what was read
               s  = forget * s + z               topics shown tire, whether read or not
               mood = calm * mood - bait_later * bait

A user's state at the start of a session is that of replaying the session's history from the user's own traits, and then
resting: satiation and mood shrink, interests stay. So `begin` needs nothing but what `Sessions` holds, and what lies further
back than the history is forgotten.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from mbcal.environments.newsfeed.articles import Articles, generate_articles
from mbcal.errors import OptionError
from mbcal.types import FIRST_ITEM_ROW, Behaviours, Catalog

LEVELS = 12
BEHAVIOURS = Behaviours(
    tuple(f"dwell-{level:02d}" for level in range(1, LEVELS + 1)), tuple(map(float, range(1, LEVELS + 1)))
)


@dataclass(frozen=True)
class NewsfeedConstants:
    """Everything that shapes the world, in levels of dwell where not said otherwise."""

    topics: int = 16
    """K: dimensions of interest; two topics make a category."""
    interest_spread: float = 0.3
    """Dirichlet parameter of a user's interests: small means few loved topics."""
    bias_spread: float = 0.5
    """How much users differ in reading everything."""
    base: float = 3.2
    """Dwell on an item of no interest, no appeal, no bait, by a fresh user."""
    interest: float = 7.0
    """Gain for an item wholly within a user's only interest."""
    appeal: float = 0.7
    """Spread of what items are worth to everybody."""
    bait_now: float = 1.8
    """Gain now from an item of bait 1 (and loss now from one of bait -1)."""
    bait_later: float = 0.3
    """What bait 1 takes from the user's mood, and so from every later step."""
    calm: float = 0.93
    """Share of mood that remains after a step."""
    satiation: float = 1.2
    """Loss for an item of one topic when that topic alone was shown one step ago."""
    forget: float = 0.8
    """Share of satiation that remains after a step."""
    drift: float = 0.1
    """Share of the way interests move towards an item read to the end."""
    rest: float = 0.25
    """Share of satiation and mood that remains from one session to the next."""
    noise: float = 1.0
    """Scale of the logistic noise in dwell."""
    logging_temperature: float = 1.0
    """The logging policy is a softmax of utility over this …"""
    logging_epsilon: float = 0.1
    """… mixed with that much of uniform choice."""


@dataclass(frozen=True)
class UserState:
    """What moves within a session, for B users; immutable."""

    interests: Tensor  # (B, K)
    satiation: Tensor  # (B, K)
    mood: Tensor  # (B,)
    bias: Tensor  # (B,)

    def __getitem__(self, index: Tensor) -> Self:
        return type(self)(*(getattr(self, name)[index] for name in ("interests", "satiation", "mood", "bias")))


class Newsfeed:
    """The world: items, users, and what users do. Item arguments are catalogue rows, user arguments are store indices."""

    def __init__(
        self,
        users: int,
        items: int = 2_000,
        seed: int = 0,
        constants: NewsfeedConstants | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if users < 1:
            raise OptionError(f"users: must be at least 1, got {users}")
        if items < 100:
            raise OptionError(f"items: must be at least 100, got {items}")
        self.users, self.items, self.seed = users, items, seed
        self.constants = constants or NewsfeedConstants()
        self.device = torch.device(device)
        draw = torch.Generator().manual_seed(seed)
        articles = generate_articles(items, self.constants.topics, draw)
        self.catalog: Catalog = articles.catalog
        self.weights = articles.weights.to(self.device)  # how often an item is offered
        self._place(articles)
        self.traits = _dirichlet(users, self.constants.topics, self.constants.interest_spread, draw).to(self.device)
        self.bias = (torch.randn(users, generator=draw) * self.constants.bias_spread).to(self.device)
        self._levels = torch.arange(LEVELS - 1, device=self.device) + 0.5

    def _place(self, articles: Articles) -> None:
        """Item tables by catalogue row; the masking and the unknown item are the average of all."""

        def by_row(values: Tensor) -> Tensor:
            average = values.mean(0, keepdim=True).expand(FIRST_ITEM_ROW, *values.shape[1:])
            return torch.cat([average, values]).to(self.device)

        self.topics = by_row(articles.topics)  # (rows, K)
        self.bait = by_row(articles.bait)  # (rows,)
        self.instant = by_row(articles.appeal * self.constants.appeal + articles.bait * self.constants.bait_now)

    @property
    def behaviours(self) -> Behaviours:
        return BEHAVIOURS

    def options(self) -> dict[str, Any]:
        """Enough to build the same world again: `Newsfeed.from_options(store.manifest["options"])`."""
        return {"users": self.users, "items": self.items, "seed": self.seed, "constants": asdict(self.constants)}

    @classmethod
    def from_options(cls, options: dict[str, Any], device: str | torch.device = "cpu") -> Self:
        """The world a store was generated by."""
        return cls(options["users"], options["items"], options["seed"], NewsfeedConstants(**options["constants"]), device)

    def fresh_state(self, user: Tensor) -> UserState:
        """Users as they are by themselves, with nothing read."""
        traits = self.traits[user]
        return UserState(traits, torch.zeros_like(traits), torch.zeros_like(self.bias[user]), self.bias[user])

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> UserState:
        """The state in which users (B,) come to a session: the history (B, H) replayed, then a rest."""
        state = self.fresh_state(user)
        for step in range(history_items.shape[1]):
            moved = self.observe(state, history_items[:, step], history_behaviours[:, step])
            state = self.merge(step < history_length, moved, state)
        return replace(state, satiation=state.satiation * self.constants.rest, mood=state.mood * self.constants.rest)

    def utility(self, state: UserState, items: Tensor) -> Tensor:
        """u of each (user, item): (B, C) for items (B, C). Expected reward rises with it."""
        return self._utility(state, self.topics[items], self.instant[items])

    def _utility(self, state: UserState, topics: Tensor, instant: Tensor) -> Tensor:
        direction = self.constants.interest * state.interests - self.constants.satiation * state.satiation
        return (
            torch.bmm(topics, direction.unsqueeze(2)).squeeze(2)
            + instant
            + (self.constants.base + state.bias + state.mood)[:, None]
        )

    def probabilities(self, state: UserState, items: Tensor) -> Tensor:
        """P(behaviour | user, item): (B, C, 12)."""
        above = self._above(self.utility(state, items))
        edges = torch.nn.functional.pad(above, (1, 0), value=1.0), torch.nn.functional.pad(above, (0, 1), value=0.0)
        return edges[0] - edges[1]

    def expected_reward(self, state: UserState, items: Tensor) -> Tensor:
        """E[reward | user, item]: (B, C). The truth that every model of this feed is after."""
        return 1 + self._above(self.utility(state, items)).sum(-1)

    def _above(self, utility: Tensor) -> Tensor:
        """P(level > k), k = 0 … 10: (…, 11)."""
        return torch.sigmoid((utility.unsqueeze(-1) - self._levels) / self.constants.noise)

    def observe(self, state: UserState, item: Tensor, behaviour: Tensor) -> UserState:
        """The state after showing item (B,) and seeing behaviour (B,)."""
        return self.update_state(state, item, behaviour.to(torch.float32) / (LEVELS - 1))

    def update_state(self, state: UserState, item: Tensor, engagement: Tensor) -> UserState:
        """The state after an item read with engagement 0 … 1; linear in it, so the mean moves as the mean engagement."""
        topics, known = self.topics[item], self.constants
        return replace(
            state,
            interests=state.interests + (known.drift * engagement).unsqueeze(1) * (topics - state.interests),
            satiation=known.forget * state.satiation + topics,
            mood=known.calm * state.mood - known.bait_later * self.bait[item],
        )

    def respond(self, state: UserState, item: Tensor, uniform: Tensor) -> tuple[Tensor, UserState]:
        """`respond` with the uniform numbers given."""
        above = self._above(self.utility(state, item.unsqueeze(1)).squeeze(1))  # (B, 11)
        behaviour = (uniform.unsqueeze(1) < above).sum(1).to(torch.uint8)
        return behaviour, self.observe(state, item, behaviour)

    def merge(self, mask: Tensor, yes: UserState, no: UserState) -> UserState:
        """User by user (B,) the one state or the other."""
        return UserState(
            interests=torch.where(mask[:, None], yes.interests, no.interests),
            satiation=torch.where(mask[:, None], yes.satiation, no.satiation),
            mood=torch.where(mask, yes.mood, no.mood),
            bias=torch.where(mask, yes.bias, no.bias),
        )

    def logging_probabilities(self, utility: Tensor, available: Tensor) -> Tensor:
        """The noisy-myopic logging policy over the candidates still available: (B, C)."""
        known = self.constants
        greedy = torch.softmax((utility / known.logging_temperature).masked_fill(~available, -torch.inf), 1)
        uniform = available / available.sum(1, keepdim=True)
        return (1 - known.logging_epsilon) * greedy + known.logging_epsilon * uniform


def _dirichlet(rows: int, size: int, concentration: float, draw: torch.Generator) -> Tensor:
    gamma = torch._standard_gamma(torch.full((rows, size), concentration), generator=draw) + 1e-9
    return gamma / gamma.sum(1, keepdim=True)
