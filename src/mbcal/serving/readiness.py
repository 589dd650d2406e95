"""What `/readyz` says: the version that serves, and what does not work although it serves."""

from __future__ import annotations

from mbcal.serving.messages import ReadyAnswer
from mbcal.serving.sentences import without_paths
from mbcal.serving.service import Service


def ready_answer(service: Service) -> ReadyAnswer:
    """Describe a service that is ready.

    Args:
        service: The service.

    Raises:
        NotReadyError: If no version is live.
        LogUnavailableError: If the log cannot be written at the moment.
    """
    if service.log is not None:
        service.log.require_writable()
    serving, wanted, problems = service.live.version.name, service.refused.wanted, []
    if service.follower.failures_in_a_row:
        problems.append("registry: the last look failed; see the server's log")
    if wanted is not None and wanted in service.refused and wanted != serving:
        reason = without_paths(service.refused[wanted], service.folders)
        problems.append(f"registry: the live version {wanted} was refused ({reason}); {serving} goes on serving")
    if not service.sessions.available:
        problems.append("state: sessions cannot be remembered; requests must carry history and shown")
    return ReadyAnswer(serving, service.follower.age, problems)
