"""From names to ranked items: `Agent.rank` for one user, `Agent.recommend` for many."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.agents.unknown_items import describe_candidates
from mbcal.errors import InputError
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.retrieval import top_k
from mbcal.scoring.scorers import UNKNOWN_USER, Scorer
from mbcal.scoring.support import SupportScorer, support_weights
from mbcal.types import FIRST_ITEM_ROW, MASK_ROW, UNKNOWN_ROW, Catalog, History, Name, Sessions, Steps, to_names, to_steps
from mbcal.types.fields import Values

if TYPE_CHECKING:
    import pyarrow as pa

    from mbcal.agents.base import Agent
    from mbcal.agents.domain import Domain


@dataclass(frozen=True)
class RankedItem:
    """One candidate of a ranking."""

    item: str
    """Its name."""
    title: str
    """Its title, or its name if it has none."""
    score: float
    parts: Mapping[str, float]
    """The terms whose sum is the score, such as `instant` and `future`."""
    known: bool
    """Whether the item occurred in training."""


@dataclass(frozen=True, eq=False)
class Recommendations(Sequence[list[str]]):
    """The best k items of N users: `recommendations[n]` are the names for user n, best first."""

    catalog: Catalog
    rows: NDArray[np.int32]
    """(N, k) catalogue rows, best first; `MASK_ROW` where a user had fewer than k candidates."""
    scores: NDArray[np.float32]
    """(N, k); minus infinity where there is no item."""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, user: int) -> list[str]: ...

    @overload
    def __getitem__(self, user: slice) -> list[list[str]]: ...

    def __getitem__(self, user: int | slice) -> list[str] | list[list[str]]:
        if isinstance(user, slice):
            return [self[number] for number in range(*user.indices(len(self)))]
        return [self.catalog.name_of(row) for row in self.rows[user].tolist() if row != MASK_ROW]

    def to_table(self) -> pa.Table:
        """Return a table with one row per recommendation; `to_table().to_pandas()` is a data frame.

        Columns: user (index into the histories of the call), rank (from 1), item, title, score.
        """
        import pyarrow as pa

        user, position = np.nonzero(self.rows != MASK_ROW)
        rows = self.rows[user, position].tolist()
        return pa.table(
            {
                "user": user,
                "rank": position + 1,
                "item": [self.catalog.name_of(row) for row in rows],
                "title": [self.catalog.title_of(row) for row in rows],
                "score": self.scores[user, position],
            }
        )

    def __repr__(self) -> str:
        return f"<Recommendations: {self.rows.shape[1]} items for each of {len(self):,} users>"


def rank(
    agent: Agent,
    history: Steps,
    candidates: Sequence[Name],
    shown: Steps,
    context: Values | None,
    user_features: Values | None,
    shown_context: Sequence[Values],
    features: Mapping[str, Mapping[str, Any]],
) -> list[RankedItem]:
    """Rank candidates for one user; see `Agent.rank`."""
    domain, scorer = agent.domain, agent.fitted_scorer
    names, shown_steps = to_names(candidates), to_steps(shown, "shown")
    _require_rankable(names, {item for item, _ in shown_steps})
    candidate_scorer, table_rows = describe_candidates(agent, names, features)
    nothing: list[Values | None] = [None] * len(shown_steps)
    contexts = [*(shown_context or nothing), context]
    if len(contexts) != len(shown_steps) + 1:
        raise InputError(f"shown_context: {len(shown_context)} for {len(shown_steps)} steps shown; give one each, or none")
    state = scorer.begin(*_to_tensors(_encode_histories(domain, [history]), agent.device))
    if user_features:
        encoded = agent.fields.user.encode(user_features, "user_features")
        state = agent.with_user(state, encoded[None])
    for number, (item, behaviour) in enumerate(zip(*_encode_steps(domain, shown_steps), strict=True)):
        state = _in_context(agent, state, contexts[number])
        state = scorer.observe(state, *(torch.from_numpy(value.reshape(1)).to(agent.device) for value in (item, behaviour)))
    state = _in_context(agent, state, contexts[-1])
    rows = domain.catalog.rows_of(names)
    parts_by_name = candidate_scorer.score_parts(state, torch.from_numpy(table_rows).to(agent.device).unsqueeze(0))
    parts = {name: part[0].tolist() for name, part in parts_by_name.items()}
    scores = [sum(values) for values in zip(*parts.values(), strict=True)]
    seen = agent.seen()
    best_first = sorted(range(len(rows)), key=lambda index: (-scores[index], index))
    return [
        RankedItem(
            item=names[index],
            title=domain.catalog.title_of(int(rows[index])) if rows[index] != UNKNOWN_ROW else names[index],
            score=scores[index],
            parts={name: values[index] for name, values in parts.items()},
            known=bool(seen[rows[index]] and rows[index] != UNKNOWN_ROW),
        )
        for index in best_first
    ]


def _in_context(agent: Agent, state: Any, context: Values | None) -> Any:
    """The state of one session with the context of its next step, if there is any."""
    return agent.with_context(state, agent.fields.context.encode(context, "context")[None]) if context else state


def recommend(
    agent: Agent,
    histories: Sequence[Steps] | Sessions,
    k: int,
    candidates: Sequence[Name] | Sequence[Sequence[Name]] | None,
    filter_history: bool,
    exact: bool,
) -> Recommendations:
    """Recommend k items to many users; see `Agent.recommend`."""
    if not isinstance(k, int) or k < 1:
        raise InputError(f"k: must be a whole number of at least 1, got {k!r}")
    domain = agent.domain
    user_features = None
    if isinstance(histories, Sessions):
        domain.require_compatible(histories, "this agent")
        encoded, user_features = histories.history, histories.encoded_by(agent.fields).user_features
    else:
        encoded = _encode_histories(domain, histories)
    rows = _candidate_rows(agent, candidates, len(encoded.user))
    excluded = np.where(np.arange(encoded.items.shape[1]) < encoded.length[:, None], encoded.items, MASK_ROW)
    excluded = excluded if filter_history else excluded[:, :0]
    if agent.device.type == "cpu":
        scorer = to_numpy(agent.fitted_scorer)  # on numpy arrays the C kernel does the scoring
        state = scorer.begin(*encoded)
        state = state if user_features is None else scorer.with_user(state, user_features)
        best, scores = top_k(_shrunk(agent, scorer, candidates), state, rows, excluded, k, exact=exact)
    else:
        scorer = agent.fitted_scorer
        state = scorer.begin(*_to_tensors(encoded, agent.device))
        state = state if user_features is None else agent.with_user(state, user_features)
        shrunk = _shrunk(agent, scorer, candidates)
        best, scores = top_k(
            shrunk, state, rows, excluded, k, exact=exact, as_rows=lambda r: torch.from_numpy(r).to(agent.device)
        )
    return Recommendations(domain.catalog, best, scores)


class ClicksAloneWarning(UserWarning):
    """A whole catalogue is ranked by a model of clicks alone."""


def _shrunk(agent: Agent, scorer: Scorer, candidates: object) -> Scorer:
    """Return the scorer, shrunk by support if a whole catalogue is ranked by a model of clicks alone, with a warning."""
    if candidates is not None or agent.support is None:
        return scorer
    warnings.warn(
        "recommend: the model learned from clicks alone, which tell nothing about items that users passed over; scores of "
        "rare items are shrunk. Give candidates, or fit on a store prepared with --negatives (docs/clicks.md)",
        ClicksAloneWarning,
        stacklevel=4,
    )
    weights: Any = support_weights(agent.support, agent.domain.catalog.n_rows)
    return SupportScorer(scorer, weights if agent.device.type == "cpu" else torch.from_numpy(weights).to(agent.device))


def _candidate_rows(
    agent: Agent, candidates: Sequence[Name] | Sequence[Sequence[Name]] | None, n_users: int
) -> NDArray[np.int32]:
    """Catalogue rows: one set (C,) for all users, or one per user (N, C) padded with `MASK_ROW`."""
    catalog = agent.domain.catalog
    if candidates is None:
        return np.flatnonzero(agent.seen()[FIRST_ITEM_ROW:]).astype(np.int32) + FIRST_ITEM_ROW
    if isinstance(candidates, str) or not len(candidates):
        raise InputError("candidates: must be a list with at least one item, or left out for the whole catalogue")
    if not isinstance(candidates[0], Sequence | np.ndarray) or isinstance(candidates[0], str):
        names = to_names(candidates)  # type: ignore[arg-type]
        _require_rankable(names, set())
        return catalog.rows_of(names)
    if len(candidates) != n_users:
        problem = f"candidates: {len(candidates)} lists for {n_users} users"
        raise InputError(f"{problem}; give one list per user, or one list for all")
    lists = [to_names(names, f"candidates of user {user}") for user, names in enumerate(candidates)]  # type: ignore[arg-type]
    rows = np.full((n_users, max(map(len, lists))), MASK_ROW, np.int32)
    for user, names in enumerate(lists):
        _require_rankable(names, set())
        rows[user, : len(names)] = catalog.rows_of(names)
    return rows


def _encode_histories(domain: Domain, histories: Sequence[Steps]) -> History:
    """Histories of names as arrays: user (N,), items and behaviours (N, H), length (N,)."""
    if isinstance(histories, str) or not hasattr(histories, "__len__") or not len(histories):
        raise InputError("histories: must be a list with one history per user")
    lists = [to_steps(steps) for steps in histories]
    longest = max(map(len, lists))
    if longest > domain.history:
        problem = f"history: {longest} steps, the model was fitted on at most {domain.history}"
        raise InputError(f"{problem}; give the latest {domain.history}")
    items = np.full((len(lists), domain.history), MASK_ROW, np.int32)
    behaviours = np.zeros((len(lists), domain.history), np.uint8)
    for user, steps in enumerate(lists):
        items[user, : len(steps)], behaviours[user, : len(steps)] = _encode_steps(domain, steps)
    length = np.asarray([len(steps) for steps in lists], np.int32)
    return History(np.full(len(lists), UNKNOWN_USER, np.int32), items, behaviours, length)


def _encode_steps(domain: Domain, steps: Sequence[tuple[str, str]]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    items = domain.catalog.rows_of(item for item, _ in steps)
    return items, np.asarray([domain.behaviours.index(behaviour) for _, behaviour in steps], np.uint8)


def _to_tensors(histories: History, device: torch.device) -> Iterator[torch.Tensor]:
    return (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in histories)


def _require_rankable(candidates: Sequence[str], shown: set[str]) -> None:
    """Raise InputError if there are no candidates, one was shown already, or one repeats."""
    if not candidates:
        raise InputError("candidates: none were given; name at least one item to rank")
    checked: set[str] = set()
    for name in candidates:
        if name in shown:
            raise InputError(f"candidates: {name!r} was already shown in this session; leave it out")
        if name in checked:
            raise InputError(f"candidates: {name!r} is there twice; name every item once")
        checked.add(name)
