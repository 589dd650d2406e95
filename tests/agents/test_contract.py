"""What every agent promises, tried on every entry of AGENTS."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mbcal.agents import AGENTS, Agent, agent_class
from mbcal.errors import InputError, ModelError
from mbcal.evaluation.evaluator import evaluate
from mbcal.nn.config import NetConfig
from mbcal.scoring.backend import to_numpy
from mbcal.training.config import TrainingConfig
from mbcal.types import UNKNOWN_ROW
from tests.support import batches
from tests.support.agents import make, offered, scores_along, small
from tests.support.toys import BEST, CATALOG, GREEDY, DelayedPrize, logged, starts

FAR_SIGHTED = {"mbcal", "mbcal-plan", "mbcal-no-vr", "dqn", "ddqn", "ddpg", "mcpe", "dyna-q"}
"""Who must find the delayed prize."""
MYOPIC = {"gru4rec", "gru4rec-eps", "gru4rec-regression"}
"""Who must not."""
NO_DRAW = {"popular", "linucb"}
"""Whose scores do not depend on the seed."""
EMBEDDING_SCALES = {"ddpg": 1.0}
"""Other initial embeddings than usual in the toy. DDPG maps items to points; of small embeddings all points begin close
together, and at this size its actor then settles on sweets for most seeds."""
TOY_SETTINGS: dict[str, dict[str, Any]] = {"mbcal-plan": {"advantage": "planned", "iterations": 2, "branches": 1_000}}
"""What is otherwise chosen from data; choices have tests of their own."""
OWN = os.environ.get("MBCAL_AGENT")
"""An agent of one's own to hold to the contract, as path.py:Class."""
if OWN:
    AGENTS[OWN] = agent_class(OWN)

every_agent = pytest.mark.parametrize("name", [OWN] if OWN else [*AGENTS])


@every_agent
def test_name_and_config_fit_the_table(name: str) -> None:
    agent = AGENTS[name]()
    assert agent.name == name or OWN
    assert isinstance(agent.config, AGENTS[name].Config)


@every_agent
def test_same_seed_same_scores_other_seed_other(name: str) -> None:
    known = batches.sessions(count=12)
    first, again, other = (scores_along(agent, known, offered(12)) for agent in (
        small(name), make(name).fit(batches.sessions(count=200, horizon=6, seed=3)), small(name, seed=1)
    ))  # fmt: skip
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name in NO_DRAW)


@every_agent
def test_batch_equals_one_by_one(name: str) -> None:
    known, candidates = batches.sessions(count=12), offered(12)
    together = scores_along(small(name), known, candidates)
    for row in range(12):
        alone = scores_along(small(name), known[row : row + 1], candidates[row : row + 1])
        assert torch.allclose(together[row], alone[0], atol=1e-5)


@every_agent
def test_the_future_never_changes_the_past(name: str) -> None:
    known, other = batches.sessions(count=12, seed=0), batches.sessions(count=12, seed=9)
    for step in range(1, known.horizon):
        items, labels = known.items.copy(), known.behaviours.copy()
        items[:, step:], labels[:, step:] = other.items[:, step:], other.behaviours[:, step:]
        changed = dataclasses.replace(
            known, items=np.where(items == 0, 2, items), behaviours=labels, length=np.full(12, 6, np.int32)
        )
        same = dataclasses.replace(known, items=np.where(known.items == 0, 2, known.items), length=np.full(12, 6, np.int32))
        before, after = (scores_along(small(name), sessions, offered(12)) for sessions in (same, changed))
        assert torch.equal(before[:, : step + 1], after[:, : step + 1])


@every_agent
def test_save_load_score_is_identical(name: str, tmp_path: Path) -> None:
    known, agent = batches.sessions(count=12), small(name)
    agent.save(tmp_path / "model", provenance={"data": "abc"})
    loaded = AGENTS[name].load(tmp_path / "model", "cpu")
    assert type(loaded) is type(agent)
    assert loaded.config == agent.config
    assert loaded.records == agent.records
    assert torch.equal(scores_along(loaded, known, offered(12)), scores_along(agent, known, offered(12)))


@every_agent
def test_warm_start_goes_on_exactly_where_it_was(name: str, tmp_path: Path) -> None:
    """Saved in between or not, a second fit gives the same agent: weights and optimiser are both kept."""
    first, second = batches.sessions(count=200, horizon=6, seed=3), batches.sessions(count=150, horizon=6, seed=4)
    agent = make(name).fit(first)
    agent.save(tmp_path / "model")
    stopped = AGENTS[name].load(tmp_path / "model", "cpu").fit(second)
    agent.fit(second)
    known = batches.sessions(count=12)
    assert agent.n_fits == stopped.n_fits == 2
    assert torch.equal(scores_along(agent, known, offered(12)), scores_along(stopped, known, offered(12)))
    if name != "random":
        assert not torch.equal(scores_along(agent, known, offered(12)), scores_along(small(name), known, offered(12)))


@every_agent
def test_without_torch_the_scores_are_the_same(name: str) -> None:
    """The service ranks as the library does."""
    known, candidates, agent = batches.sessions(count=12), offered(12), small(name)
    scorer: Any = to_numpy(agent.fitted_scorer)
    state = scorer.begin(*known.history)
    said = scores_along(agent, known, candidates)
    for step in range(known.horizon):
        plain = scorer.score(state, candidates)
        assert isinstance(plain, np.ndarray)
        assert np.allclose(plain, said[:, step].numpy(), atol=1e-5)
        state = scorer.observe(state, known.items[:, step], known.behaviours[:, step])


@every_agent
def test_strangers_and_new_items_get_finite_answers(name: str) -> None:
    ranked = small(name).rank([("never seen", "like")], ["item 3", "new thing", "item 5"], [("item 1", "click")])
    assert sorted(entry.item for entry in ranked) == ["item 3", "item 5", "new thing"]
    assert all(np.isfinite(entry.score) for entry in ranked)
    assert [entry.score for entry in ranked] == sorted((entry.score for entry in ranked), reverse=True)
    assert {entry.item: entry.known for entry in ranked} == {"item 3": True, "item 5": True, "new thing": False}
    for entry in ranked:
        assert entry.score == pytest.approx(sum(entry.parts.values()), abs=1e-6)


@every_agent
def test_rank_agrees_with_scores(name: str) -> None:
    agent, catalog = small(name), batches.CATALOG
    names = ["item 7", "item 0", "item 4"]
    known = batches.sessions(count=1, seed=5)
    steps = [
        (catalog.name_of(int(item)), batches.LABELS.names[label])
        for item, label in zip(known.history_items[0], known.history_behaviours[0], strict=True)
    ][: int(known.history_length[0])]
    steps = [(item, label) for item, label in steps if item != "<unknown>"]
    length = len(steps)
    history = np.zeros((1, 4), np.int32), np.zeros((1, 4), np.uint8)
    history[0][0, :length] = catalog.rows_of(item for item, _ in steps)
    history[1][0, :length] = [batches.LABELS.index(label) for _, label in steps]
    user = torch.tensor([2**31 - 1], dtype=torch.int32)
    state = agent.begin(user, *map(torch.from_numpy, history), torch.tensor([length]))
    said = agent.score(state, torch.from_numpy(catalog.rows_of(names)).unsqueeze(0))[0]
    ranked = {entry.item: entry.score for entry in agent.rank(steps, names)}
    assert np.allclose([ranked[one] for one in names], said.numpy(), atol=1e-5)


@every_agent
def test_bad_questions_are_refused_in_words(name: str) -> None:
    agent = small(name)
    with pytest.raises(InputError, match="candidates: none were given"):
        agent.rank([], [])
    with pytest.raises(InputError, match="'item 1' is there twice"):
        agent.rank([], ["item 1", "item 2", "item 1"])
    with pytest.raises(InputError, match="history: 5 steps, the model was fitted on at most 4; give the latest 4"):
        agent.rank([("item 1", "like")] * 5, ["item 1"])
    with pytest.raises(InputError, match=r"behaviour 'lik' is unknown.*Did you mean 'like'"):
        agent.rank([("item 1", "lik")], ["item 1"])
    with pytest.raises(ModelError, match="has not been fitted"):
        AGENTS[name]().rank([], ["item 1"])
    with pytest.raises(InputError, match="no sessions"):
        make(name).fit(batches.sessions(count=3)[:0])


@every_agent
def test_other_data_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="knows the behaviours skip, click, like, the data has skip, click, like"):
        small(name).domain.require_compatible(logged(5), "it")  # the same names, other rewards
    alike = dataclasses.replace(logged(5), behaviour_set=batches.LABELS)
    with pytest.raises(ModelError, match="knows 12 items, the data has 24"):
        make(name).fit(batches.sessions(count=50)).fit(alike)


def in_the_toy(name: str, sessions: int = 1_000, noise: bool = False) -> Agent:
    kind = AGENTS[name]
    net = NetConfig(hidden=16, embedding=16, embedding_scale=EMBEDDING_SCALES.get(name, 0.2))
    training = TrainingConfig(epochs=20, batch=64, learning_rate=4e-3)
    config = kind.Config(net=net, training=training, **TOY_SETTINGS.get(name, {}))
    return kind(config, "cpu").fit(logged(sessions, noise=noise))


@every_agent
def test_who_looks_ahead_finds_the_delayed_prize(name: str) -> None:
    earned = evaluate(in_the_toy(name), DelayedPrize(), starts(300, seed=1)).reward.mean
    if name in FAR_SIGHTED:
        assert earned >= 0.9 * BEST
    elif name in MYOPIC:
        assert earned == pytest.approx(GREEDY, abs=0.3)  # sweets now, and never a key
    elif not OWN:
        assert earned < 0.9 * BEST


@every_agent
def test_noise_stays_at_chance(name: str) -> None:
    """Nothing to learn: nothing earned, and nothing imagined either."""
    imagines = name in ("mbcal", "gru4rec")
    agent = in_the_toy(name, 1_000 if imagines else 100, noise=True)  # what is earned depends on no choice
    chance = 6 * (0 + 1 + 3) / 3
    outcome = evaluate(agent, DelayedPrize(noise=True), starts(1500, seed=1))
    assert abs(outcome.reward.mean - chance) < 4 * outcome.reward.stderr
    if imagines:
        state = agent.begin(*starts(1).tensors().history)
        said = agent.score(state, torch.arange(2, CATALOG.n_rows).unsqueeze(0))
        assert float(said.max() - said.min()) < 0.7  # in the other world a key alone is worth 6 more than a sweet


def test_the_unknown_item_has_a_row_of_its_own() -> None:
    assert batches.CATALOG.rows_of(["never seen"])[0] == UNKNOWN_ROW
