"""The service without HTTP: rank, take feedback, follow the registry, count.

::

    request  ──▶ session recalled ──▶ Ranker (one version) ──▶ decision written to the log, fsynced ──▶ answer
    feedback ──▶ written to the log, fsynced ──▶ session updated
    registry ──▶ polled ──▶ a new version is opened and verified in a thread, then replaces the old one between two requests
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mbcal.decision_log.records import Feedback
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import InputError, MbcalError, ModelError
from mbcal.registry.pointer import Pointer
from mbcal.registry.registry import Registry
from mbcal.serving.canary import Canary, CanarySettings
from mbcal.serving.feedback import FeedbackReceiver
from mbcal.serving.fields import GivenFields, given_fields
from mbcal.serving.follower import Follower, RefusedVersions, fingerprint
from mbcal.serving.hub import HubStore
from mbcal.serving.ids import IdSource
from mbcal.serving.limits import Limits
from mbcal.serving.messages import (
    FeedbackAnswer,
    FeedbackRequest,
    ModelAnswer,
    RankAnswer,
    RankRequest,
    TryAnswer,
    steps_as_text,
)
from mbcal.serving.ranked import RankedRequest, RankingFailedError, rank_request
from mbcal.serving.ranker import Ranker
from mbcal.serving.repeats import RepeatedRequests, request_hash
from mbcal.serving.state import DecisionRef, Session, SessionStore, StateAwayError, latest_steps
from mbcal.serving.stats import model_answer
from mbcal.serving.threads import in_thread
from mbcal.serving.traffic import Traffic, VersionCounts
from mbcal.types import Name, to_name

LOG_SECONDS = 3.0
"""Longest wait for the log's disk at the end; the records that wait for it were answered with 503."""

OnEvent = Callable[..., None]


class NotReadyError(MbcalError):
    """No version is live yet."""


class _Ranked(NamedTuple):
    """A request ranked in its session."""

    request: RankedRequest
    is_remembered: bool
    """Whether the session is remembered, if it has a name."""
    is_begun: bool
    """Whether this request has begun the session in the memory."""


@dataclass
class Service:
    """The ranking service of one process.

    Everything runs in one event loop, except opening versions and fsyncing the log, which run in threads.
    """

    registry: Registry
    sessions: SessionStore
    log: DecisionLog | None
    """None to log nothing."""
    epsilon: float
    """Probability of a uniformly random item at each rank."""
    limits: Limits = field(default_factory=Limits)
    on_event: OnEvent = lambda *_, **__: None
    """Called with the name of an event and its values, such as `on_event("swapped", version="v000002")`."""
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(128)))
    """Source of exploration."""
    repeats: bool = False
    """Whether items that were shown in a session may be ranked again in it."""
    workers: HubStore | None = None
    """Connection to the other workers; None if there is one process."""
    lifetime: float = 1800.0
    """Seconds for which the answer to a request with an id is remembered."""
    canary_settings: CanarySettings = field(default_factory=CanarySettings)
    """Which share of users, or of sessions without a user, the registry's canary gets."""

    def __post_init__(self) -> None:
        self.ranker: Ranker | None = None
        self.refused = RefusedVersions()
        self.canary = Canary(self.canary_settings, self.registry, self.on_event)
        self.follower = Follower(self.refresh_version, self.on_event)
        self._reading: asyncio.Future[Pointer] | None = None
        self.counts: dict[str, VersionCounts] = {}
        self.traffic = Traffic()
        self.started = time.monotonic()
        self._new_id = IdSource()
        share = self.limits.max_memory // 8
        self.repeated = RepeatedRequests(self.sessions, share, self.lifetime)
        self._feedback = FeedbackReceiver(self.sessions, self.log, self._new_id, self._count_feedback, share)

    # ---- versions

    async def refresh_version(self) -> None:
        """Switch to the registry's live version and its canary; the previous version goes on if one cannot be opened.

        A process that has just started falls back to the latest of the versions that were live before.

        Raises:
            ModelError: If the registry cannot be read, or has no live version any more, as when its folder is gone.
        """
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading])  # while it hangs, no other is begun
        self._reading = asyncio.ensure_future(in_thread(self.registry.pointer))
        pointer = await asyncio.shield(self._reading)
        if pointer.current is None and self.ranker is not None:
            raise ModelError(f"{self.registry.path}: the registry has no live version any more; bring its folder back")
        name = self.refused.wanted = pointer.current
        if name is not None and (self.ranker is None or self.ranker.version.name != name):
            for choice in (name,) if self.ranker is not None else (name, *reversed(pointer.before)):
                ranker = self.canary.ranker_of(choice) or await self._open(choice)
                if ranker is not None:
                    self.ranker = ranker
                    self.on_event("swapped", version=choice)
                    break
        await self.canary.follow(pointer.canary, pointer.canary_began, self._open, pointer.canary_salt)

    async def _open(self, name: str) -> Ranker | None:
        """Open and verify a version; None if it is refused. It is tried again when its files change."""
        folder = self.registry.path / "versions" / name
        files = await in_thread(fingerprint, folder)
        if self.refused.still_holds(name, files):
            return None
        try:
            memory = self.limits.max_memory // (8 if self.canary_settings.share else 4)  # for the canary as much again
            ranker = await in_thread(lambda: Ranker(self.registry.open(name), memory, self.repeats))
        except MbcalError as error:
            self.refused.refuse(name, str(error), files)
            self.on_event("refused", version=name, error=str(error))
            return None
        self.counts.setdefault(name, VersionCounts())
        return ranker

    @property
    def live(self) -> Ranker:
        """The ranker of the live version; raises NotReadyError if there is none."""
        if self.ranker is None:
            nothing = "no version is published yet; publish one with 'mbcal registry publish'"
            raise NotReadyError(self.refused.sentence or nothing)
        return self.ranker

    # ---- ranking

    async def rank(self, request: RankRequest) -> RankAnswer:
        """Rank the candidates of one user and log the decision.

        Args:
            request: The request. If it was answered before under its id, that answer is returned and nothing is logged.

        Returns:
            At most k items, all ranked by one version.

        Raises:
            InputError: If candidates repeat or are too many, or a behaviour or a field is unknown.
            NotReadyError: If no version is live.
            LogFullError: If the log cannot keep up.
            LogUnavailableError: If the log cannot be written at the moment.
            IdConflictError: If another request has its id.
            OtherUserError: If its session was begun by another user.
            IdBusyError: If another process is answering it and does not come to an end.
            StateAwayError: If sessions cannot be remembered at the moment and the request does not say what was shown.
        """
        if request.id is None:
            return await self._rank(request, self._new_id(), "")
        decision = to_name(request.id, "id")
        hashed = request_hash(request, self.live.reader.read(request.candidates, request.k, self.limits.max_candidates))
        return await self.repeated.once(decision, hashed, lambda: self._rank(request, decision, hashed))

    async def _rank(self, request: RankRequest, decision: str, hashed: str) -> RankAnswer:
        session_name, user = _text_or_none(request.session, "session"), _text_or_none(request.user, "user") or ""
        proposed, given = self._proposed_session(request, user, self.canary.version_for(user or session_name or ""))
        ranked, remembered, is_begun = await self._rank_in_session(request, proposed, session_name, given)
        version, now = ranked.version, time.time_ns() // 1000
        if self.log is not None:
            record = ranked.decision(decision, now, session_name, request, hashed, self.repeats)
            await self.log.append_async(record)
        # without a name or a memory, a session seems to begin when nothing was shown yet
        is_new = not ranked.shown and (is_begun or session_name is None or not remembered)
        answer = RankAnswer(decision, version, ranked.epsilon, ranked.items, remembered)
        order = ranked.session.time_of_next(now)  # a clock that is set back does not reorder what was shown
        reference = self.repeated.reference(hashed, session_name, order, answer, given.context)
        answer = await self.repeated.remember(decision, reference, answer)
        counts = self.counts.setdefault(version, VersionCounts())
        counts.decisions += 1
        counts.sessions += is_new
        self.traffic.decision(version, session_name, is_new, ranked.n_candidates, ranked.n_unknown, now / 1e6)
        return answer

    def try_rank(self, request: RankRequest) -> TryAnswer:
        """Rank the candidates of one user by the live version, without exploration; nothing is logged, kept or counted.

        Args:
            request: The request, with all that was shown; session, user and id must be left out.

        Raises:
            InputError: As `rank`, and if the request has a session, a user or an id.
            NotReadyError: If no version is live.
        """
        for name in ("session", "user", "id"):
            if getattr(request, name) is not None:
                raise InputError(f"{name}: nothing is remembered of a request that is only tried; send history and shown")
        session, given = self._proposed_session(request, "", "")
        arguments: dict[str, Any] = {"name": None, "epsilon": 0.0, "most": self.limits.max_candidates}
        ranked = rank_request(self.live, request, session, given, generator=self.generator, **arguments)
        return TryAnswer(ranked.version, ranked.items)

    def _proposed_session(self, request: RankRequest, user: str, version: str) -> tuple[Session, GivenFields]:
        """The session that a request begins if there is none yet, and the fields that it gives.

        Raises:
            InputError: If the live version does not know a behaviour or a field.
        """
        given = given_fields(request)
        self.live.fields.require_declared(given)
        longest = max(ranker.version.history for ranker in (self.live, self.canary.ranker) if ranker is not None)
        history, shown = steps_as_text(request.history, "history"), steps_as_text(request.shown or (), "shown")
        self.live.require_known((*history, *shown))  # of all steps, however many a version reads
        history = latest_steps(history, longest)  # it is logged with every decision
        return Session(user, history, (), version, given.user_features), given

    async def _rank_in_session(
        self, request: RankRequest, proposed: Session, name: str | None, given: GivenFields
    ) -> _Ranked:
        """Rank in the session of this name, which begins as proposed if it is not known and the request can be ranked."""
        if name is None:
            return _Ranked(await self._rank_by_version(request, proposed, name, given), True, False)
        try:
            known = await self.sessions.get(name)
        except StateAwayError as error:
            if request.shown is None:  # only the memory knows what was shown
                raise StateAwayError(f"{error}, or send history and shown with the request") from error
            return _Ranked(await self._rank_by_version(request, proposed, name, given), False, False)
        session = proposed if known is None else known
        session.require_user(proposed.user, name)
        ranked = await self._rank_by_version(request, session, name, given)
        if known is not None:
            return _Ranked(ranked, True, False)
        if self.log is not None:
            self.log.require_writable()  # before anything of the session stays
        try:
            begun = await self.sessions.begin(name, proposed)
        except StateAwayError:
            return _Ranked(ranked, False, False)
        begun.require_user(proposed.user, name)
        if begun != proposed:  # another request began it in the meantime, and the first history counts
            return _Ranked(await self._rank_by_version(request, begun, name, given), True, False)
        return _Ranked(ranked, True, begun is proposed)

    async def _rank_by_version(
        self, request: RankRequest, session: Session, name: str | None, given: GivenFields
    ) -> RankedRequest:
        """Rank by the version of the session; by the live one if the canary fails or refuses, which is then withdrawn.

        A request at which the live version fails, or which it refuses, too, is no evidence against the canary.
        """

        def rank(ranker: Ranker, epsilon: float) -> RankedRequest:
            most, generator = self.limits.max_candidates, self.generator
            arguments: dict[str, Any] = {"name": name, "epsilon": epsilon, "most": most, "generator": generator}
            return rank_request(ranker, request, session, given, **arguments)

        ranker, epsilon = self._ranker_of(session)
        try:
            return rank(ranker, epsilon)
        except (RankingFailedError, InputError) as failure:
            if ranker is not self.canary.ranker:
                raise
            ranked = rank(self.live, self.epsilon)
            await self.canary.fail(failure)
            return ranked

    def _ranker_of(self, session: Session) -> tuple[Ranker, float]:
        """The version that ranks for a session, and its epsilon: the one the session began with, or the live one."""
        canary = self.canary.ranker_of(session.version)
        if canary is None:
            return self.live, self.epsilon
        return canary, max(self.epsilon, self.canary.settings.epsilon or 0.0)  # with less it would earn more, unearned

    # ---- feedback

    async def feedback(self, request: FeedbackRequest) -> FeedbackAnswer:
        """Log the behaviour towards an item; see `FeedbackReceiver.receive`. Raises NotReadyError if no version is live."""
        return await self._feedback.receive(request, self.live.version.behaviours)

    async def _count_feedback(self, feedback: Feedback, reference: DecisionRef, reward: float) -> None:
        """Count the first feedback on an item for its version and for the page, unless another worker has counted one."""
        if self.workers is not None and not await self.workers.first_feedback(feedback.decision, feedback.item):
            return
        counts = self.counts.setdefault(reference.version, VersionCounts())
        counts.feedback += 1
        counts.reward += reward
        self.traffic.feedback(reference.session, feedback.decision, reference.time / 1e6, feedback.time / 1e6, reward)

    # ---- state of the service

    @property
    def folders(self) -> list[Path]:
        """Folders whose names no answer may contain."""
        return [self.registry.path, *([] if self.log is None else [self.log.folder])]

    @property
    def remembered_bytes(self) -> int:
        """Estimated bytes of sessions, decisions, answers and scorer states in this process."""
        rankers = {self.ranker, self.canary.ranker}
        states = sum(ranker.cached_bytes for ranker in rankers if ranker is not None)
        return self.sessions.used_bytes + self.repeated.used_bytes + self._feedback.used_bytes + states

    def model(self) -> ModelAnswer:
        """Describe the live version; raises NotReadyError if there is none."""
        return model_answer(self)

    async def close(self) -> None:
        """Close the session store and the log; a disk that stalls holds that up for `LOG_SECONDS` only."""
        await self.sessions.close()
        if self.log is not None and not await in_thread(self.log.close, LOG_SECONDS):
            self.on_event("log not closed", records=self.log.waiting, problem="the disk does not answer")


def _text_or_none(name: Name | None, what: str) -> str | None:
    return None if name is None else to_name(name, what)
