"""Train somebody else's DQN (stable-baselines3) on our users, through Gymnasium.

Run:  pip install 'mbcal[gym]' stable-baselines3
      python examples/dqn_stable_baselines3.py [--steps 20000]

The Q-network scores every candidate by one shared MLP over its embedding and what the session has been like so far, so that
places in the candidate list mean nothing. A candidate that is gone is never the maximum.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

import mbcal.gym  # noqa: F401 - registers the environments

GONE = -1e3


class CandidateScorer(BaseFeaturesExtractor):
    """Observation -> Q of every candidate."""

    def __init__(self, observation_space: gymnasium.spaces.Dict, size: int = 16) -> None:
        super().__init__(observation_space, observation_space["candidates"].shape[0])
        self.items = nn.Embedding(int(observation_space["candidates"].high.max()) + 1, size)
        self.levels = int(observation_space["behaviours"].high.max())
        self.mlp = nn.Sequential(nn.Linear(3 * size + 1, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        candidates = self.items(seen["candidates"].long())  # (B, C, size)
        liked = seen["history_behaviours"] / self.levels * (seen["history_behaviours"] < self.levels)
        taste = (self.items(seen["history_items"].long()) * liked.unsqueeze(-1)).mean(1)
        shown = (self.items(seen["items"].long()) * (seen["items"] > 0).unsqueeze(-1)).mean(1)
        told = torch.cat([taste, shown, seen["step"] / 20], 1).unsqueeze(1).expand(-1, candidates.shape[1], -1)
        scores = self.mlp(torch.cat([candidates, told], -1)).squeeze(-1)
        return scores.masked_fill(seen["available"] == 0, GONE)


def mean_reward(env: gymnasium.Env, choose, episodes: int = 200) -> tuple[float, float]:
    """Mean reward per session and its standard error, over the same sessions for everybody."""
    totals = []
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            observation, reward, over, _, info = env.step(choose(observation, info))
            total += float(reward)
        totals.append(total)
    return float(np.mean(totals)), float(np.std(totals) / np.sqrt(episodes))


def main() -> None:
    """Train, and print what it earned beside chance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    env = gymnasium.make("mbcal/Newsfeed-v0", users=200, items=200, horizon=10)
    model = DQN(
        "MultiInputPolicy",
        env,
        learning_rate=1e-3,
        buffer_size=options.steps,
        learning_starts=min(1_000, options.steps // 2),
        batch_size=128,
        gamma=0.95,
        target_update_interval=500,
        policy_kwargs={"features_extractor_class": CandidateScorer, "net_arch": [], "normalize_images": False},
        seed=0,
        device="cpu",
    )
    for net in (model.q_net, model.q_net_target):
        net.q_net = nn.Identity()  # the extractor's scores are the Q-values
    draw = np.random.default_rng(0)
    chance = mean_reward(env, lambda _, info: int(draw.choice(np.flatnonzero(info["action_mask"]))))
    model.learn(options.steps)
    learned = mean_reward(env, lambda observation, _: int(model.predict(observation, deterministic=True)[0]))
    for name, (mean, error) in (("random", chance), ("dqn", learned)):
        print(f"{name:8} {mean:6.2f} ± {1.96 * error:.2f}")


if __name__ == "__main__":
    main()
