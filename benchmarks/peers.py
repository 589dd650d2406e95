"""The DQN of d3rlpy and tianshou on logged transitions: CPU seconds for a number of updates.

    python benchmarks/peers.py LOG.npz UPDATES        (run by benchmarks/experiment.py, with an interpreter that has them)

With `sequence` they get the input of mbcal's agents: the items and behaviours of history and session so far, read by a GRU
of the same size. With `flat` they do the least possible work: a small MLP over a vector of 64 numbers.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

BATCH, HIDDEN, WARM_UP_UPDATES = 256, 32, 20
Log = dict[str, np.ndarray[Any, Any]]


class SequenceEncoder(nn.Module):
    """Items and behaviours (B, 2L) -> (B, 32), by a GRU of the size that mbcal's agents have."""

    def __init__(self, items: int, behaviours: int) -> None:
        super().__init__()
        self.items, self.behaviours = nn.Embedding(items, HIDDEN), nn.Embedding(behaviours, HIDDEN)
        self.cell = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        items, behaviours = x.long().chunk(2, 1)
        return self.head(self.cell(torch.cat([self.behaviours(behaviours), self.items(items)], -1))[0][:, -1])


def d3rlpy_dqn(log: Log, kind: str, updates: int) -> dict[str, Any]:
    """Return the version and the CPU seconds of so many updates, after a warm-up."""
    import d3rlpy
    from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory

    @dataclasses.dataclass()
    class SequenceEncoderFactory(EncoderFactory):
        def create(self, observation_shape: Any) -> nn.Module:  # noqa: ARG002 - as d3rlpy calls it
            return SequenceEncoder(int(log["items"]), int(log["behaviours"]))

        @staticmethod
        def get_type() -> str:
            return "sequence"

    dataset = d3rlpy.dataset.MDPDataset(log[kind], log["actions"], log["rewards"], log["ends"])
    encoder = SequenceEncoderFactory() if kind == "sequence" else VectorEncoderFactory([HIDDEN, HIDDEN])
    config = d3rlpy.algos.DQNConfig(batch_size=BATCH, gamma=0.95, encoder_factory=encoder, target_update_interval=20)
    agent = config.create(device="cpu:0")
    agent.build_with_dataset(dataset)
    quiet = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False}
    agent.fit(dataset, n_steps=WARM_UP_UPDATES, n_steps_per_epoch=WARM_UP_UPDATES, **quiet)
    begin = time.process_time()
    agent.fit(dataset, n_steps=updates, n_steps_per_epoch=updates, **quiet)
    return {"version": d3rlpy.__version__, "cpu": time.process_time() - begin}


def tianshou_dqn(log: Log, kind: str, updates: int) -> dict[str, Any]:
    """Return the version and the CPU seconds of so many updates, after a warm-up."""
    import gymnasium
    import tianshou
    from tianshou.algorithm import DQN
    from tianshou.algorithm.algorithm_base import policy_within_training_step
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, ReplayBuffer
    from tianshou.utils.net.common import Net

    actions = int(log["actions"].max()) + 1

    class SequenceNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = SequenceEncoder(int(log["items"]), int(log["behaviours"]))
            self.head = nn.Linear(HIDDEN, actions)

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:  # noqa: ARG002 - as tianshou calls it
            return self.head(self.encoder(torch.as_tensor(obs))), state

    flat = Net(state_shape=(log[kind].shape[1],), action_shape=(actions,), hidden_sizes=[HIDDEN, HIDDEN])
    policy = DiscreteQLearningPolicy(
        model=SequenceNet() if kind == "sequence" else flat, action_space=gymnasium.spaces.Discrete(actions)
    )
    agent = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.95, target_update_freq=20)
    count = min(len(log["rewards"]), 20_000)
    buffer = ReplayBuffer(count)
    next_observations = np.roll(log[kind], -1, 0)
    for k in range(count):
        step = {"obs": log[kind][k], "act": log["actions"][k], "rew": log["rewards"][k], "obs_next": next_observations[k]}
        buffer.add(Batch(**step, terminated=bool(log["ends"][k]), truncated=False, info={}))
    with policy_within_training_step(agent.policy):
        for _ in range(WARM_UP_UPDATES):
            agent.update(buffer, BATCH)
        begin = time.process_time()
        for _ in range(updates):
            agent.update(buffer, BATCH)
    return {"version": tianshou.__version__, "cpu": time.process_time() - begin}


def main() -> None:
    torch.set_num_threads(1)
    log, updates = dict(np.load(sys.argv[1])), int(sys.argv[2])
    results: dict[str, Any] = {}
    for kind, count in (("sequence", max(updates // 10, 1)), ("flat", updates)):
        for name, run in (("d3rlpy", d3rlpy_dqn), ("tianshou", tianshou_dqn)):
            try:
                results[f"{name}, {kind}"] = {**run(log, kind, count), "transitions": count * BATCH}
            except Exception as error:  # one library that does not run must not hide the others
                results[f"{name}, {kind}"] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
