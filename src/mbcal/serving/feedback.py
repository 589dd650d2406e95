"""Feedback on decisions: logged, added to its session, and counted once per item."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from mbcal.decision_log.records import Feedback
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import InputError
from mbcal.serving.answers import RememberedAnswers
from mbcal.serving.messages import FeedbackAnswer, FeedbackRequest
from mbcal.serving.state import DecisionRef, SessionStore, StateAwayError, Step
from mbcal.types import Behaviours, to_name

ANSWER_BYTES = 1_000
"""Estimated size of a remembered answer."""

Count = Callable[[Feedback, DecisionRef, float], Awaitable[None]]
"""Is given the first feedback on an item, its decision and its reward."""


class FeedbackReceiver:
    """Takes feedback."""

    def __init__(
        self,
        sessions: SessionStore,
        log: DecisionLog | None,
        new_id: Callable[[], str],
        count: Count,
        max_bytes: int,
    ) -> None:
        """Remember no answers yet.

        Args:
            sessions: Where decisions are found and steps are added.
            log: The decision log; None to log nothing.
            new_id: Makes an id for every record.
            count: Counts the first feedback on an item in this process.
            max_bytes: Bound on remembered answers.
        """
        self._sessions, self._log, self._new_id, self._count = sessions, log, new_id, count
        self._answers: RememberedAnswers[tuple[str, FeedbackAnswer]] = RememberedAnswers(max_bytes, lambda _: ANSWER_BYTES)

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of remembered answers."""
        return self._answers.used_bytes

    async def receive(self, request: FeedbackRequest, behaviours: Behaviours) -> FeedbackAnswer:
        """Log the behaviour towards an item and add it to the item's session. Idempotent.

        Of several behaviours towards one item the first counts. The others are logged, too: comparisons of versions say so.

        Args:
            request: The feedback; without an item it is about the first item of the decision.
            behaviours: Those of the live version.

        Returns:
            Whether the session has the behaviour, and the one that came first, if that was another.

        Raises:
            InputError: If the item is not of the decision, the behaviour is unknown, or the decision has expired and no item
                is given.
            LogFullError: If the log cannot keep up.
            LogUnavailableError: If the log cannot be written at the moment.
            StateAwayError: If decisions cannot be recalled at the moment and no item is given.
        """
        decision, behaviour = to_name(request.decision, "decision"), to_name(request.behaviour, "behaviour")
        reference, item = await self._find(decision, None if request.item is None else to_name(request.item, "item"))
        reward = behaviours.rewards[behaviours.index(behaviour)]
        feedback = Feedback(decision, item, behaviour, time.time_ns() // 1000, self._new_id())
        key = (decision, item, reference is not None)  # once more, if the decision was not known yet
        first, answer = await self._answers.once(key, lambda: self._take_first(feedback, reference, reward))
        if behaviour != first:
            _, answer = await self._answers.once((*key, behaviour), lambda: self._take_further(feedback, first))
            return answer
        if answer.applied or answer.first or reference is None:
            return answer
        return await self._add_step(feedback, reference)  # the memory may be back

    async def _find(self, decision: str, item: str | None) -> tuple[DecisionRef | None, str]:
        """Return a decision, if it is remembered, and the item that feedback is about."""
        try:
            reference = await self._sessions.recall_decision(decision)
        except StateAwayError as error:
            if item is None:
                raise StateAwayError(f"{error}, or name the item the feedback is about") from error
            reference = None  # it is logged, and no session is updated
        if item is None:
            if reference is None or not reference.items:
                raise InputError(
                    f"item: decision {decision!r} has expired or is unknown; name the item the feedback is about"
                )
            item = reference.items[0]
        if reference is not None and item not in reference.items:
            raise InputError(f"item: {item!r} is not among the items of decision {decision!r}")
        return reference, item

    async def _append(self, feedback: Feedback) -> None:
        if self._log is not None:
            await self._log.append_async(feedback)

    async def _take_first(
        self, feedback: Feedback, reference: DecisionRef | None, reward: float
    ) -> tuple[str, FeedbackAnswer]:
        """Log the first feedback on an item, count it and add it to the session; return its behaviour and the answer."""
        await self._append(feedback)
        if reference is None:
            return feedback.behaviour, FeedbackAnswer(feedback.decision, False)
        await self._count(feedback, reference, reward)
        return feedback.behaviour, await self._add_step(feedback, reference)

    async def _take_further(self, feedback: Feedback, first: str) -> tuple[str, FeedbackAnswer]:
        """Log another behaviour than the first towards an item; it changes nothing else."""
        await self._append(feedback)
        return first, FeedbackAnswer(feedback.decision, False, first)

    async def _add_step(self, feedback: Feedback, reference: DecisionRef) -> FeedbackAnswer:
        """Add a step to its session, unless it has one for the item; say whether it is there, or there is no session."""
        decision, item, behaviour = feedback.decision, feedback.item, feedback.behaviour
        if reference.session is None:
            return FeedbackAnswer(decision, True)
        step = Step(reference.time, reference.items.index(item), decision, item, behaviour, reference.context)
        try:
            session = await self._sessions.add(reference.session, step)
        except StateAwayError:
            session = None
        if session is None:
            return FeedbackAnswer(decision, False)
        before = session.behaviour_of(decision, item) or behaviour  # of very long sessions the oldest steps are forgotten
        return FeedbackAnswer(decision, before == behaviour, None if before == behaviour else before)
