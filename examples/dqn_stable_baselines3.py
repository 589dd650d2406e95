"""Train the DQN of stable-baselines3 on the users of the generated newsfeed, through Gymnasium.

Run:  pip install 'mbcal[gym]' stable-baselines3
      python examples/dqn_stable_baselines3.py [--steps 20000]

The Q-network scores every candidate by one shared MLP over its embedding and a summary of the user, so that the order of
candidates has no effect. A candidate that was shown before is never the maximum.
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

SHOWN_BEFORE = -1e3
"""Q of candidates that cannot be shown again."""


class CandidateScorer(BaseFeaturesExtractor):
    """Maps an observation to Q of every candidate."""

    def __init__(self, observation_space: gymnasium.spaces.Dict, size: int = 16) -> None:
        super().__init__(observation_space, observation_space["candidates"].shape[0])
        self.items = nn.Embedding(int(observation_space["candidates"].high.max()) + 1, size)
        self.n_behaviours = int(observation_space["behaviours"].high.max())
        self.mlp = nn.Sequential(nn.Linear(3 * size + 1, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return Q of all candidates, (B, C)."""
        candidates = self.items(observation["candidates"].long())  # (B, C, size)
        levels = observation["history_behaviours"]
        engagement = levels / self.n_behaviours * (levels < self.n_behaviours)  # 0 in the padding
        taste = (self.items(observation["history_items"].long()) * engagement.unsqueeze(-1)).mean(1)
        shown = (self.items(observation["items"].long()) * (observation["items"] > 0).unsqueeze(-1)).mean(1)
        user = torch.cat([taste, shown, observation["step"] / 20], 1).unsqueeze(1).expand(-1, candidates.shape[1], -1)
        scores = self.mlp(torch.cat([candidates, user], -1)).squeeze(-1)
        return scores.masked_fill(observation["available"] == 0, SHOWN_BEFORE)


def mean_reward(env: gymnasium.Env, choose, episodes: int = 200) -> tuple[float, float]:
    """Return the mean reward per session and its standard error; the sessions are the same for every policy."""
    totals = []
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        total, terminated = 0.0, False
        while not terminated:
            observation, reward, terminated, _, info = env.step(choose(observation, info))
            total += float(reward)
        totals.append(total)
    return float(np.mean(totals)), float(np.std(totals) / np.sqrt(episodes))


def main() -> None:
    """Train, and print the reward of the DQN and of a random policy."""
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
    generator = np.random.default_rng(0)
    random = mean_reward(env, lambda _, info: int(generator.choice(np.flatnonzero(info["action_mask"]))))
    model.learn(options.steps)
    learned = mean_reward(env, lambda observation, _: int(model.predict(observation, deterministic=True)[0]))
    for name, (mean, error) in (("random", random), ("dqn", learned)):
        print(f"{name:8} {mean:6.2f} ± {1.96 * error:.2f}")


if __name__ == "__main__":
    main()
