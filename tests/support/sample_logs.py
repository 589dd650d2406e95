"""Small logs of every kind that docs/data.md tells apart, with the columns that it shows."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.logs import write_csv

FIRST = datetime(2026, 3, 1, 8, tzinfo=UTC)
USERS, VISITS, DAYS = 60, 3, 9


def write_sample_logs(folder: Path) -> list[tuple[str, ...]]:
    """Write the files into a folder; returns their headers."""
    generator = random.Random(0)
    return [
        *_ratings(folder, generator),
        *_impressions(folder, generator),
        *_plays(folder, generator),
    ]


def _write(folder: Path, name: str, header: str, rows: list[tuple[object, ...]]) -> tuple[str, ...]:
    columns = tuple(header.split(","))
    folder.mkdir(exist_ok=True)
    write_csv(folder / name, rows, columns)
    return columns


def _ratings(folder: Path, generator: random.Random) -> list[tuple[str, ...]]:
    movies = [*range(30, 40), *range(1028, 1038)]
    rows: list[tuple[object, ...]] = [
        (user, movie, generator.randrange(1, 11) / 2, 1_260_759_144 + 60 * k)
        for user in range(USERS)
        for k, movie in enumerate(generator.sample(movies, 12))
    ]
    films: list[tuple[object, ...]] = [(movie, f"Film {movie}", ("Drama", "Drama|War")[movie % 2]) for movie in movies]
    return [
        _write(folder, "ratings.csv", "userId,movieId,rating,timestamp", rows),
        _write(folder, "movies.csv", "movieId,title,genres", films),
    ]


def _impressions(folder: Path, generator: random.Random) -> list[tuple[str, ...]]:
    """Visits on several days; articles appear day by day. The clicks are a log of their own."""
    impressions: list[tuple[object, ...]] = []
    clicks: list[tuple[object, ...]] = []
    for user in range(USERS):
        for visit in range(VISITS):
            day = generator.randrange(DAYS)
            time, name = FIRST + timedelta(days=day, minutes=generator.randrange(600)), f"v{user}-{visit}"
            for step in range(generator.randrange(3, 9)):
                time += timedelta(seconds=generator.randrange(2, 200))
                article = f"a{generator.randrange(3 * day, 3 * day + 20)}"
                action = generator.choice(["skip", "skip", "click", "share", "left"])
                device = generator.choice(["phone", "desktop"])
                impressions.append((f"u{user}", article, time.strftime("%Y-%m-%dT%H:%M:%SZ"), name, action, device))
                if action in ("click", "share") or step == 0:
                    clicks.append((f"u{user}", article, int(time.timestamp()), name.replace("v", "s")))
                if action == "left":
                    break
    articles: list[tuple[object, ...]] = [
        (f"a{number}", generator.choice(["news", "sport"]), generator.randrange(100, 1000), f"Headline {number}")
        for number in range(3 * DAYS + 20)
    ]
    users: list[tuple[object, ...]] = [(f"u{user}", generator.choice(["fr", "de"])) for user in range(USERS)]
    return [
        _write(folder, "impressions.csv", "user,article,shown_at,visit,action,device", impressions),
        _write(folder / "days", "day-10.csv", "user,article,shown_at,visit,action,device", _next_day(impressions)),
        _write(folder, "articles.csv", "article,category,words,headline", articles),
        _write(folder, "users.csv", "user,country", users),
        _write(folder, "clicks.csv", "user,article,clicked_at,session", clicks),
    ]


def _next_day(impressions: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Every visit again on the day after the last, with articles that are new."""
    day = FIRST + timedelta(days=DAYS)
    again: list[tuple[object, ...]] = []
    for number, (user, article, _, visit, *rest) in enumerate(impressions):
        time = (day + timedelta(seconds=10 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        again.append((user, f"{article}-new" if number % 3 else article, time, f"{visit}-again", *rest))
    return again


def _plays(folder: Path, generator: random.Random) -> list[tuple[str, ...]]:
    rows: list[tuple[object, ...]] = []
    for user in range(USERS):
        time = FIRST
        for _ in range(generator.randrange(10, 25)):
            seconds = round(generator.expovariate(1 / 40), 1)
            time += timedelta(seconds=seconds + 1, hours=5 * (generator.random() < 0.2))
            rows.append((f"u{user}", f"v{generator.randrange(25)}", time.strftime("%Y-%m-%d %H:%M:%S"), seconds))
    return [_write(folder, "plays.csv", "user,video,started_at,seconds", rows)]
