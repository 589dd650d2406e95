"""KuaiRand (Pure, 1K, 27K) in its published layout: impressions of a short-video feed, video and user features.

A behaviour is one of twelve levels of dwell time (`play_time_ms`), with rewards 1..12. The cut points are quantiles over the
users outside the test part, and are stored in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass

from mbcal.data import files
from mbcal.data.behaviour_rules import Quantiles
from mbcal.data.files import Paths
from mbcal.data.readers.csv_files import csv_file_sql
from mbcal.data.source import ITEM_KEY, USER_KEY, LogDescription, LogFile
from mbcal.data.sql import sql_identifier
from mbcal.data.workspace import Workspace

WHERE = """\
KuaiRand is published by its authors at https://kuairand.com (KuaiRand-Pure, -1K and -27K), licensed CC BY-SA 4.0; cite Gao
et al. (CIKM 2022).
Download one, then:  mbcal prepare kuairand KuaiRand-Pure.zip --horizon 10 --out DIR"""

PATTERNS = {
    "log": ["log_standard_*.csv"],
    "videos": ["video_features_basic_*.csv"],
    "users": ["user_features_*.csv"],
}
LEVELS = 12
"""Levels of dwell time."""
COLUMNS = ("user_id", "video_id", "time_ms", "play_time_ms")
VIDEO_COLUMNS = ("tag", "author_id", "video_type", "upload_type", "music_type", "video_duration")

USER_CATEGORIES = (
    *("user_active_degree", "is_lowactive_period", "is_live_streamer", "is_video_author"),
    *("follow_user_num_range", "fans_user_num_range", "friend_user_num_range", "register_days_range"),
    *(f"onehot_feat{number}" for number in range(18)),
)
"""Columns of the user table that become categories. Counts of friends and fans are long-tailed: their ranges say more."""
USER_NUMBERS = ("register_days",)
"""Columns of the user table that become numbers."""

DURATIONS = (7, 15, 30, 60, 120, 300)
"""Boundaries, in seconds, of the buckets of a video's length."""
FEATURES = {
    "tag": "string_split(tag, ',')",
    "author_id": "author_id",
    "video_type": "video_type",
    "upload_type": "upload_type",
    "music_type": "music_type",
    "duration": "CASE WHEN try_cast(video_duration AS DOUBLE) >= 0 THEN concat('from ', list_max(list_filter("
    f"{[0, *DURATIONS]}, lambda s: s * 1000 <= try_cast(video_duration AS DOUBLE))), ' s') END",
}


@dataclass(frozen=True)
class KuaiRand:
    """A release of KuaiRand.

    In a folder or zip only the standard logs are read. Give the path of the log of random exposures as well to include it.
    """

    paths: Paths
    """A folder, a zip or single files."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there is no log, or a file cannot be read or lacks a column.
        """
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        columns_sql = 'user_id AS "user", video_id AS item, time_ms AS "time", play_time_ms AS behaviour'
        logs = files.require_files(found, "log", paths, PATTERNS)
        videos = [csv_file_sql(path, ["video_id", *VIDEO_COLUMNS], work, "item") for path in found["videos"]]
        feature_columns = ", ".join(f"{sql} AS {sql_identifier(feature)}" for feature, sql in FEATURES.items())
        features = " UNION ALL ".join(
            f"SELECT video_id AS {sql_identifier(ITEM_KEY)}, {feature_columns} FROM ({video_sql})" for video_sql in videos
        )
        categories = [f"nullif({sql_identifier(name)}, '') AS {sql_identifier(name)}" for name in USER_CATEGORIES]
        numbers = [f"try_cast({name} AS FLOAT) AS {sql_identifier(name)}" for name in USER_NUMBERS]
        user_columns = ", ".join([f"user_id AS {sql_identifier(USER_KEY)}", *categories, *numbers])
        users = " UNION ALL ".join(
            f"SELECT {user_columns} FROM ({csv_file_sql(path, ['user_id', *USER_CATEGORIES, *USER_NUMBERS], work, 'user')})"
            for path in found["users"]
        )
        return LogDescription(
            layout="kuairand",
            files=tuple(LogFile(path, columns_sql, f"({csv_file_sql(path, COLUMNS, work, 'log')})") for path in logs),
            rule=Quantiles(LEVELS),
            features_sql=features or None,
            users_sql=users or None,
            time_unit="ms",
            options={"features": list(FEATURES) if features else []},
        )
