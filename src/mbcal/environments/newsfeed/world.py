"""The generated newsfeed: users whose response to every item is known exactly.

The feed of the paper was never published. This one has its traits: users whose interests drift towards what they read, who
tire of a topic that repeats, and items that please now and cost later (bait) or the reverse. The numbers that shape it are
in `NewsfeedConstants`; everything random comes from the seed.

One step, with z the item's topics (K numbers that sum to 1), w the user's interests and s the user's satiation (K each)::

    utility    u = base + bias + interest <w, z> - satiation <s, z> + appeal + bait_now * bait + mood
    behaviour  P(level > k) = sigmoid((u - k - 1/2) / noise), k = 0 … 10            (12 levels of dwell)
    reward     level + 1
    then       w    <- w + drift * e * (z - w)         e = level / 11: interests move towards what was read
               s    <- forget * s + z                  a topic shown tires, whether read or not
               mood <- calm * mood - bait_later * bait

With `Leaving`, a user leaves after a step with probability sigmoid(base - mood_weight * mood' + satiation_weight <s, z>),
mood' being the mood after the item: bad moods and repeated topics drive users away. Every level has then a terminal variant.

At the start of a session, the session's history is replayed from the user's initial interests; then satiation and mood
shrink to the share `rest`, and interests stay. So `begin` needs only what `Sessions` holds, and steps before the history
have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from mbcal.environments.newsfeed.articles import Articles, generate_articles
from mbcal.errors import OptionError
from mbcal.types import FIRST_ITEM_ROW, Behaviours, Catalog

LEVELS = 12
"""Levels of dwell, 0 … 11: the behaviours of the feed."""
BEHAVIOURS = Behaviours(
    tuple(f"dwell-{level:02d}" for level in range(1, LEVELS + 1)), tuple(map(float, range(1, LEVELS + 1)))
)
"""Level k is called `dwell-{k + 1}` and has reward k + 1."""
LEAVING_BEHAVIOURS = BEHAVIOURS.with_leaving()
"""The same for users who can leave: level k and its terminal variant, number k + 12."""
MIN_ITEMS = 100
"""Fewest items a feed can have."""


@dataclass(frozen=True)
class NewsfeedConstants:
    """What the world is like. In levels of dwell unless stated otherwise."""

    topics: int = 16
    """K, the number of topics; two topics make a category."""
    interest_spread: float = 0.3
    """Dirichlet parameter of a user's initial interests: the smaller, the fewer topics a user likes."""
    bias_spread: float = 0.5
    """Standard deviation of the users' bias, which a user adds to every item."""
    base: float = 3.2
    """Utility of an item without appeal or bait, of no interest to the user, at the start of a first session."""
    interest: float = 7.0
    """Gain from an item whose only topic is the user's only interest."""
    appeal: float = 0.7
    """Standard deviation of what items add for every user alike."""
    bait_now: float = 1.8
    """Gain at once from an item of bait 1, and loss from one of bait -1."""
    bait_later: float = 0.3
    """What an item of bait 1 takes from the user's mood, and so from every later step."""
    calm: float = 0.93
    """Share of mood that remains after a step."""
    satiation: float = 1.2
    """Loss from an item of one topic if an item of that topic alone was shown one step before."""
    forget: float = 0.8
    """Share of satiation that remains after a step."""
    drift: float = 0.1
    """Share of the distance to an item's topics that interests move when the item is read to the end."""
    rest: float = 0.25
    """Share of satiation and mood that remains from one session to the next."""
    noise: float = 1.0
    """Scale of the logistic noise in dwell."""
    logging_temperature: float = 1.0
    """The logging policy is a softmax of utility / logging_temperature …"""
    logging_epsilon: float = 0.1
    """… mixed with this share of uniform choice."""


@dataclass(frozen=True)
class Leaving:
    """When users leave; all numbers are log odds."""

    base: float = -4.0
    """In a neutral mood, with an item of a topic that has not tired."""
    mood: float = 1.5
    """Per level of bad mood."""
    satiation: float = 1.0
    """Per unit of satiation with the item's topics."""


@dataclass(frozen=True)
class UserState:
    """What changes within a session, for B users. Immutable."""

    interests: Tensor
    """w, (B, K)."""
    satiation: Tensor
    """s, (B, K)."""
    mood: Tensor
    """(B,)."""
    bias: Tensor
    """(B,), constant."""

    def __getitem__(self, rows: Tensor) -> Self:
        return type(self)(self.interests[rows], self.satiation[rows], self.mood[rows], self.bias[rows])

    def __repr__(self) -> str:
        return f"<UserState: {len(self.mood)} sessions>"


class Newsfeed:
    """A world of items and users; an `Environment` whose probabilities can be asked for.

    Items are given as catalogue rows, users as the numbers 0 … users - 1 that a store generated from it has, too.

    Args:
        users: How many users, at least 1.
        items: How many items, at least 100.
        seed: Seed of everything random about items and users.
        constants: What the world is like.
        leaving: When users leave; None if all stay to the end of a session.
        device: Where states and item tables lie.

    Raises:
        OptionError: If there are too few users or items.
    """

    def __init__(
        self,
        users: int,
        items: int = 2_000,
        seed: int = 0,
        constants: NewsfeedConstants | None = None,
        device: str | torch.device = "cpu",
        leaving: Leaving | None = None,
    ) -> None:
        if users < 1:
            raise OptionError(f"users: must be at least 1, got {users}")
        if items < MIN_ITEMS:
            raise OptionError(f"items: must be at least {MIN_ITEMS}, got {items}")
        self.users, self.items, self.seed = users, items, seed
        self.constants, self.leaving = constants or NewsfeedConstants(), leaving
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        articles = generate_articles(items, self.constants.topics, generator)
        self.catalog: Catalog = articles.catalog
        self.popularity = articles.popularity.to(self.device)
        """(items,) probability with which an item is sampled as a candidate."""
        self.topics = self._by_row(articles.topics)
        """z, (rows, K)."""
        self.bait = self._by_row(articles.bait)
        """(rows,), in -1 … 1."""
        self.instant = self._by_row(self._instant_utility(articles))
        """(rows,) the part of utility that is the same for all users: appeal + bait_now * bait."""
        self.initial_interests = _sample_dirichlet(
            users, self.constants.topics, self.constants.interest_spread, generator
        ).to(self.device)
        """w before anything was read, (users, K)."""
        self.bias = (torch.randn(users, generator=generator) * self.constants.bias_spread).to(self.device)
        """(users,)."""
        self._thresholds = torch.arange(LEVELS - 1, device=self.device) + 0.5

    def _instant_utility(self, articles: Articles) -> Tensor:
        return articles.appeal * self.constants.appeal + articles.bait * self.constants.bait_now

    def _by_row(self, values: Tensor) -> Tensor:
        """Values (items, …) by catalogue row, (rows, …). The masking and the unknown item have the mean of all items."""
        mean = values.mean(0, keepdim=True).expand(FIRST_ITEM_ROW, *values.shape[1:])
        return torch.cat([mean, values]).to(self.device)

    @property
    def behaviours(self) -> Behaviours:
        return BEHAVIOURS if self.leaving is None else LEAVING_BEHAVIOURS

    def options(self) -> dict[str, Any]:
        """Return what `from_options` needs to create the same world again; part of a generated store's manifest."""
        options = {"users": self.users, "items": self.items, "seed": self.seed, "constants": asdict(self.constants)}
        return options if self.leaving is None else {**options, "leaving": asdict(self.leaving)}

    @classmethod
    def from_options(cls, options: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        """Create the world that a store was generated from: `Newsfeed.from_options(store.manifest["options"])`."""
        leaving = Leaving(**options["leaving"]) if "leaving" in options else None
        constants = NewsfeedConstants(**options["constants"])
        return cls(options["users"], options["items"], options["seed"], constants, device, leaving)

    # ---- as an environment

    def fresh_state(self, user: Tensor) -> UserState:
        """Return the state of users (B,) who have read nothing: initial interests, no satiation, neutral mood."""
        interests, bias = self.initial_interests[user], self.bias[user]
        return UserState(interests, torch.zeros_like(interests), torch.zeros_like(bias), bias)

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> UserState:
        """Return the state in which users (B,) begin a session: the history (B, H) replayed, then a rest."""
        state = self.fresh_state(user)
        for step in range(history_items.shape[1]):
            next_state = self.observe(state, history_items[:, step], history_behaviours[:, step])
            state = self.merge(step < history_length, next_state, state)
        return replace(state, satiation=state.satiation * self.constants.rest, mood=state.mood * self.constants.rest)

    def respond(self, state: UserState, item: Tensor, uniform: Tensor) -> tuple[Tensor, UserState]:
        """Respond to item (B,) by uniform numbers (B,): the level is the number of k with uniform < P(level > k).

        Under the same uniform number, an item of higher utility never gets a lower level. Within a level, the number is
        again uniform: it decides whether the user leaves.

        Returns:
            Behaviours (B,) uint8, and the state after them.
        """
        above = self._probability_above(self.utility(state, item.unsqueeze(1)).squeeze(1))  # (B, 11)
        behaviour = (uniform.unsqueeze(1) < above).sum(1).to(torch.uint8)
        if self.leaving is not None:
            edges = torch.nn.functional.pad(torch.nn.functional.pad(above, (1, 0), value=1.0), (0, 1))  # (B, 13), falling
            high, low = (edges.gather(1, behaviour.long().unsqueeze(1) + k).squeeze(1) for k in (0, 1))
            leaves = uniform - low < self.leaving_probability(state, item.unsqueeze(1)).squeeze(1) * (high - low)
            behaviour = behaviour + LEVELS * leaves.to(torch.uint8)
        return behaviour, self.observe(state, item, behaviour)

    def observe(self, state: UserState, item: Tensor, behaviour: Tensor) -> UserState:
        """Return the state after item (B,) met behaviour (B,): a level 0 … 11, or 12 more if the user left."""
        return self.update_state(state, item, (behaviour % LEVELS).to(torch.float32) / (LEVELS - 1))

    def update_state(self, state: UserState, item: Tensor, engagement: Tensor) -> UserState:
        """Return the state after item (B,) was read with engagement e (B,), any number in 0 … 1.

        The update is linear in e, so the mean engagement gives the mean of the next state::

            w <- w + drift e (z - w)      s <- forget s + z      mood <- calm mood - bait_later bait
        """
        topics, constants = self.topics[item], self.constants
        return replace(
            state,
            interests=state.interests + (constants.drift * engagement).unsqueeze(1) * (topics - state.interests),
            satiation=constants.forget * state.satiation + topics,
            mood=constants.calm * state.mood - constants.bait_later * self.bait[item],
        )

    def merge(self, mask: Tensor, yes: UserState, no: UserState) -> UserState:
        """Return, session by session, the state `yes` where mask (B,) is true, else `no`."""
        return UserState(
            interests=torch.where(mask[:, None], yes.interests, no.interests),
            satiation=torch.where(mask[:, None], yes.satiation, no.satiation),
            mood=torch.where(mask, yes.mood, no.mood),
            bias=torch.where(mask, yes.bias, no.bias),
        )

    # ---- the truth

    def utility(self, state: UserState, items: Tensor) -> Tensor:
        """Return u, (B, C), of items (B, C): base + bias + <interest w - satiation s, z> + instant + mood."""
        constants = self.constants
        direction = constants.interest * state.interests - constants.satiation * state.satiation
        matched = torch.bmm(self.topics[items], direction.unsqueeze(2)).squeeze(2)
        return matched + self.instant[items] + (constants.base + state.bias + state.mood)[:, None]

    def probabilities(self, state: UserState, items: Tensor) -> Tensor:
        """Return P(behaviour | state, item), (B, C, 12), of items (B, C): P(level > k - 1) - P(level > k).

        With `Leaving` (B, C, 24): the same times the probability to stay, and to leave.
        """
        above = self._probability_above(self.utility(state, items))
        at_least = torch.nn.functional.pad(above, (1, 0), value=1.0)
        levels = at_least - torch.nn.functional.pad(above, (0, 1), value=0.0)
        if self.leaving is None:
            return levels
        leaves = self.leaving_probability(state, items).unsqueeze(-1)
        return torch.cat([levels * (1 - leaves), levels * leaves], -1)

    def predict(self, state: UserState, item: Tensor) -> tuple[Tensor, Callable[[Tensor], UserState]]:
        """See `branches.PredictingEnvironment`."""
        return self.probabilities(state, item.unsqueeze(1)).squeeze(1), lambda behaviour: self.observe(
            state, item, behaviour
        )

    def leaving_probability(self, state: UserState, items: Tensor) -> Tensor:
        """Return the probability (B, C) that the user leaves after each item (B, C); 0 without `Leaving`."""
        if self.leaving is None:
            return torch.zeros_like(self.bait[items])
        satiation = torch.bmm(self.topics[items], state.satiation.unsqueeze(2)).squeeze(2)
        return torch.sigmoid(
            self.leaving.base - self.leaving.mood * self.next_mood(state, items) + self.leaving.satiation * satiation
        )

    def next_mood(self, state: UserState, items: Tensor) -> Tensor:
        """Return the mood (B, C) after each item (B, C)."""
        return self.constants.calm * state.mood.unsqueeze(1) - self.constants.bait_later * self.bait[items]

    def expected_reward(self, state: UserState, items: Tensor) -> Tensor:
        """Return E[reward | state, item], (B, C), of items (B, C): 1 + sum_k P(level > k). Rises with utility."""
        return 1 + self._probability_above(self.utility(state, items)).sum(-1)

    def _probability_above(self, utility: Tensor) -> Tensor:
        """P(level > k), k = 0 … 10: (…) -> (…, 11)."""
        return torch.sigmoid((utility.unsqueeze(-1) - self._thresholds) / self.constants.noise)

    def logging_probabilities(self, utility: Tensor, available: Tensor) -> Tensor:
        """Return the probabilities with which the logging policy shows each candidate.

        The policy is myopic and noisy: (1 - logging_epsilon) softmax(u / logging_temperature) + logging_epsilon / n over the
        n available candidates.

        Args:
            utility: u of the candidates, (B, C).
            available: Which of them can be shown, (B, C) bool; at least one per session.

        Returns:
            (B, C), 0 where a candidate is not available; rows sum to 1.
        """
        constants = self.constants
        greedy = torch.softmax((utility / constants.logging_temperature).masked_fill(~available, -torch.inf), 1)
        uniform = available / available.sum(1, keepdim=True)
        return (1 - constants.logging_epsilon) * greedy + constants.logging_epsilon * uniform

    def __repr__(self) -> str:
        return f"<Newsfeed: {self.users:,} users, {self.items:,} items, seed {self.seed}, on {self.device}>"


def _sample_dirichlet(rows: int, size: int, concentration: float, generator: torch.Generator) -> Tensor:
    """(rows, size) samples of a symmetric Dirichlet distribution."""
    gamma = torch._standard_gamma(torch.full((rows, size), concentration), generator=generator) + 1e-9
    return gamma / gamma.sum(1, keepdim=True)
