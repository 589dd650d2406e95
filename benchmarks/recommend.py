"""Time and memory of recommending to many users from a whole catalogue, and the share of lists that shortlists change.

Run:  python benchmarks/recommend.py                        10,000 users, 15,000 items, one core
      python benchmarks/recommend.py --users 2000 --items 4000

Fits MBCAL for one epoch on a generated newsfeed, then recommends to test users: by shortlists (the default), and for some
of them by scoring every item, which must give the same lists.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import mbcal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=15_000)
    parser.add_argument("--exact-users", type=int, default=500, help="Users who are also scored exactly.")
    parser.add_argument("--k", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = mbcal.NewsfeedConfig(sessions=12 * options.users, items=options.items)
        store = mbcal.prepare_newsfeed(f"{folder}/feed", config)
        agent = mbcal.MBCAL(epochs=1, device="cpu").fit(store.sessions("train", 0, 30_000))
        users = store.sessions("test", 0, options.users)
    catalog, labels = users.catalog, users.behaviour_set.names
    histories = [
        [(catalog.name_of(row), labels[label]) for row, label in zip(rows[:length], behaviours[:length], strict=True)]
        for rows, behaviours, length in zip(users.history_items, users.history_behaviours, users.history_length, strict=True)
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    fast = agent.recommend(histories, options.k)
    seconds = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    began = time.perf_counter()
    exact = agent.recommend(histories[: options.exact_users], options.k, exact=True)
    per_user = (time.perf_counter() - began) / options.exact_users
    same = float(np.mean([fast[user] == exact[user] for user in range(options.exact_users)]))
    print(f"{len(histories):,} users, {int(agent.seen()[2:].sum()):,} items, k = {options.k}, one thread")
    print(f"shortlists  {seconds:6.1f} s   {seconds / len(histories) * 1e3:.2f} ms per user, {grown:.0f} MiB more memory")
    exact_seconds = per_user * len(histories)
    print(f"exact       {exact_seconds:6.1f} s   {per_user * 1e3:.2f} ms per user (measured on {options.exact_users})")
    print(f"ratio {exact_seconds / seconds:.1f}; the same lists for {same:.1%} of users")


if __name__ == "__main__":
    main()
