"""Small logs in the layouts of their owners."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from tests.support.logs import zipped

ML_20M = {
    "ml-20m/ratings.csv": (
        b"userId,movieId,rating,timestamp\r\n1,31,2.5,1260759144\r\n1,1029,0.5,1260759179\r\n2,31,5.0,835355493\r\n"
    ),
    "ml-20m/movies.csv": (
        b'movieId,title,genres\r\n31,"Dangerous, Minds (1995)",Drama|War\r\n1029,Dumbo,(no genres listed)\r\n'
    ),
    "ml-20m/tags.csv": "userId,movieId,tag,timestamp\n1,31, Café ,1\n2,31,café,2\n2,31,slow,3\n".encode(),
    "ml-20m/links.csv": b"movieId,imdbId,tmdbId\n31,1,2\n",
}


COMBINED = b"7:\n11,3,2005-01-02\n12,5,2004-12-31\n8:\n11,1,2005-01-01\n"


def shuffled(files: dict[str, bytes], has_header: bool, seed: int) -> dict[str, bytes]:
    """The same files with their lines in another order, but for headers."""
    result = {}
    for name, data in files.items():
        lines = data.splitlines(keepends=True)
        header, rows = (lines[:1], lines[1:]) if has_header else ([], lines)
        random.Random(seed).shuffle(rows)
        result[name] = b"".join([*header, *rows])
    return result


def kuairand(tmp_path: Path, users: int = 60, each: int = 24) -> Path:
    rng = np.random.default_rng(0)
    header = "user_id,video_id,date,hourmin,time_ms,is_click,play_time_ms,duration_ms"
    log = [header]
    for user in range(users):
        for k in range(each):
            play = 0 if rng.random() < 0.2 else int(rng.exponential(9000))  # many zeros: skipped at once
            log.append(f"{user},{rng.integers(30)},20220425,1800,{1650882384975 + 1000 * k + user},0,{play},9000")
    videos = ["video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,music_type,tag"]
    videos += [f'{v},{v % 5},NORMAL,2022-04-10,Web,0.0,{7000.0 * (v % 3)},{v % 4}.0,"{v % 7},{v % 3}"' for v in range(30)]
    return zipped(
        tmp_path / "KuaiRand-Pure.zip",
        {
            "KuaiRand-Pure/data/log_standard_4_22_to_5_08_pure.csv": "\n".join(log).encode(),
            "KuaiRand-Pure/data/video_features_basic_pure.csv": "\n".join(videos).encode(),
            "KuaiRand-Pure/data/log_random_4_22_to_5_08_pure.csv": b"not read unless named",
        },
    )
