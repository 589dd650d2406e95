"""Counts of requests and their duration, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mbcal.serving.access import Access
from mbcal.serving.service import Service

if TYPE_CHECKING:
    from mbcal.serving.connections import Connections

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
"""Upper bounds, in seconds, of the histogram of request durations."""


class RequestMetrics:
    """Counts requests by path and status; durations are those of paths under /v1/, refused requests included."""

    def __init__(self, access: Access | None = None) -> None:
        """Start with nothing counted.

        Args:
            access: Counts wrong tokens; None if there are no tokens.
        """
        self.in_progress = 0
        self._access = access or Access()
        self.connections: Connections | None = None
        """Connections of this process; None if the application runs without a server."""
        self._counts: dict[tuple[str, int], int] = {}
        self._bucket_counts = [0] * (len(BUCKETS) + 1)
        self._total_seconds = 0.0

    def record(self, path: str, status: int, seconds: float | None) -> None:
        """Count a request.

        Args:
            path: Path of its route.
            status: Status it was answered with.
            seconds: Its duration; None to leave it out of the histogram.
        """
        self._counts[path, status] = self._counts.get((path, status), 0) + 1
        if seconds is not None:
            self._total_seconds += seconds
            self._bucket_counts[bisect_left(BUCKETS, seconds)] += 1

    def to_text(self, service: Service) -> str:
        """Return these metrics and the service's counts in Prometheus' text format."""
        lines = ["# TYPE mbcal_requests_total counter"]
        for (path, status), count in sorted(self._counts.items()):
            lines.append(f'mbcal_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE mbcal_request_seconds histogram")
        cumulative = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._bucket_counts, strict=True):
            cumulative += count
            lines.append(f'mbcal_request_seconds_bucket{{le="{bound}"}} {cumulative}')
        lines += [f"mbcal_request_seconds_sum {self._total_seconds:.6f}", f"mbcal_request_seconds_count {cumulative}"]
        for name, kind in (("decisions", "counter"), ("sessions", "counter"), ("feedback", "counter"), ("reward", "gauge")):
            lines.append(f"# TYPE mbcal_{name} {kind}")
            for version, counts in service.counts.items():
                lines.append(f'mbcal_{name}{{version="{version}"}} {getattr(counts, name)}')
        traffic = service.traffic
        for name, total in (
            ("candidates", traffic.candidates),
            ("unknown_candidates", traffic.unknown),
            ("decisions_with_feedback", traffic.with_feedback),
        ):
            lines += [f"# TYPE mbcal_{name}_total counter", f"mbcal_{name}_total {total}"]
        lines += [
            "# TYPE mbcal_feedback_delay_seconds summary",
            f"mbcal_feedback_delay_seconds_sum {traffic.delay_seconds:.3f}",
        ]
        lines += [f"mbcal_feedback_delay_seconds_count {traffic.delays}"]
        lines += ["# TYPE mbcal_requests_in_progress gauge", f"mbcal_requests_in_progress {self.in_progress}"]
        lines += ["# TYPE mbcal_ready gauge", f"mbcal_ready {int(service.ranker is not None)}"]
        for name, kind, value in service_values(service):
            lines += [f"# TYPE mbcal_{name} {kind}", f"mbcal_{name} {value:g}"]
        lines += ["# TYPE mbcal_wrong_tokens_total counter", f"mbcal_wrong_tokens_total {self._access.wrong_tokens}"]
        if self.connections is not None:
            lines += ["# TYPE mbcal_connections gauge", f"mbcal_connections {len(self.connections.open)}"]
            lines.append("# TYPE mbcal_connections_closed_total counter")
            for reason, count in sorted(self.connections.closed.items()):
                lines.append(f'mbcal_connections_closed_total{{reason="{reason}"}} {count}')
        if service.canary.name is not None:
            version, share = service.canary.name, service.canary.settings.share
            lines += ["# TYPE mbcal_canary_share gauge", f'mbcal_canary_share{{version="{version}"}} {share}']
        return "\n".join(lines) + "\n"


def service_values(service: Service) -> list[tuple[str, str, float]]:
    """Return name, kind and value of what an operator should know about the state of the service."""
    log = service.log
    log_values: list[tuple[str, str, float]] = (
        []
        if log is None
        else [
            ("log_writable", "gauge", log.problem is None),
            ("log_outages_total", "counter", log.outages),
            ("log_records_total", "counter", log.last_record),
            ("log_lost_records", "gauge", log.lost),
        ]
    )
    return [
        *log_values,
        ("registry_look_age_seconds", "gauge", service.follower.age),
        ("registry_look_failures_total", "counter", service.follower.failures),
        ("refused_versions", "gauge", len(service.refused)),
        ("state_available", "gauge", service.sessions.available),
        ("state_outages_total", "counter", service.sessions.outages),
        ("remembered_bytes", "gauge", service.remembered_bytes),
    ]


def merge_metrics(texts: Mapping[str, str], restarts: int) -> str:
    """Merge the metrics of several workers into one text, with a label `worker` on every value.

    Args:
        texts: Metrics in Prometheus' text format, by the worker's number.
        restarts: Workers that ended and were started again.
    """
    families: dict[str, list[str]] = {}
    for worker, text in sorted(texts.items(), key=lambda entry: int(entry[0])):
        family: list[str] = []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                family = families.setdefault(line, [])
                continue
            name, _, value = line.rpartition(" ")
            labels = name[name.index("{") + 1 : -1] + "," if "{" in name else ""
            family.append(f'{name.partition("{")[0]}{{{labels}worker="{worker}"}} {value}')
    lines = [line for kind, values in families.items() for line in (kind, *values)]
    lines += ["# TYPE mbcal_worker_restarts_total counter", f"mbcal_worker_restarts_total {restarts}"]
    return "\n".join(lines) + "\n"
