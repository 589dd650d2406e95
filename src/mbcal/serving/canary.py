"""The canary of a server process: which sessions get it, and what happens if it cannot be opened or fails.

A user gets the canary if a hash of the user's name, the canary's name and the trial's salt falls below the share. The salt
is random and in the registry. So all servers and workers agree, also after a restart, the users of one trial are not those
of the next, nobody can choose names that get the canary, and a visit has one version, whichever of its requests carry a
session. Requests without a user go by their session. Those with neither get the live version: nothing would keep a visit
with one version, nor say what it earned. `release.sessions` counts by the same names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mbcal.data.user_split import stable_hash
from mbcal.errors import MbcalError, OutputError
from mbcal.registry.registry import Registry
from mbcal.serving.ranker import Ranker
from mbcal.serving.threads import in_thread


@dataclass(frozen=True)
class CanarySettings:
    """How canaries are served."""

    share: float = 0.0
    """Share of users, or of sessions without a user, that the registry's canary gets; 0 gives it none."""
    epsilon: float | None = None
    """Its probability of a random item at each rank, if that is above the live version's; None for that of the live version.
    With less exploration than the live version it would earn more without being better."""


class Canary:
    """The registry's canary, opened and ready to rank beside the live version.

    Args:
        settings: How it is served.
        registry: Where a canary that cannot be opened or fails is withdrawn.
        on_event: Called with the name of an event and its values.
    """

    def __init__(self, settings: CanarySettings, registry: Registry, on_event: Callable[..., None]) -> None:
        self.settings, self._registry, self._on_event = settings, registry, on_event
        self.ranker: Ranker | None = None
        self._trial: tuple[str | None, int] = (None, 0)  # the registry's canary, and when it became that
        self._salt = ""
        self._failed: tuple[str | None, int] | None = None  # the trial in which it failed last
        self._reason: str | None = None  # why it is to be withdrawn, which could not be done yet
        self._unserved: str | None = None  # a canary that gets no sessions here, as was said

    @property
    def name(self) -> str | None:
        """The canary's version; None if there is none, or it gets no sessions here."""
        return None if self.ranker is None else self.ranker.version.name

    def version_for(self, key: str) -> str:
        """Return the canary's name if it gets the user, or the session, of this name, else an empty text.

        An empty name never gets it.
        """
        name = self.name
        if name is None or not key:
            return ""
        purpose = f"canary {name} {self._salt}".rstrip()  # trials that began without a salt go on with the same users
        return name if stable_hash(key, 0, purpose) < self.settings.share * 2**64 else ""

    def ranker_of(self, version: str) -> Ranker | None:
        """Return the canary's ranker if this is its version."""
        return self.ranker if self.name == version else None

    async def follow(
        self, name: str | None, began: int, open_version: Callable[[str], Awaitable[Ranker | None]], salt: str = ""
    ) -> None:
        """Open the registry's canary, or drop the one before. One that failed gets sessions again in another trial.

        Args:
            name: The registry's canary; None if there is none.
            began: When it became the canary, which tells its trials apart.
            open_version: Opens and verifies a version; returns None if it is refused.
            salt: The salt of its trial; empty if it began without one.
        """
        self._trial, self._salt = (name, began), salt
        if self._trial == self._failed and self._reason is not None:
            await self._try_to_withdraw(name, self._reason)
        if name is None or self.settings.share == 0 or self._trial == self._failed:
            self.ranker = None
            if self.settings.share == 0:
                self._tell_unserved(name)
        elif self.ranker_of(name) is None:
            self.ranker = None
            self.ranker = await open_version(name)
            if self.ranker is None:
                await self._withdraw(name, "it is damaged, a server refused it")
            else:
                self._on_event("canary", version=name, share=self.settings.share)

    async def fail(self, error: Exception) -> None:
        """Drop and withdraw the canary because it failed at, or refused, a request that the live version ranked."""
        name, self.ranker = self.name, None
        if name is not None:
            await self._withdraw(name, f"it failed while ranking ({error})")

    def _tell_unserved(self, name: str | None) -> None:
        """Say once that the registry's canary gets no sessions here: without any, its trial decides nothing."""
        if name not in (None, self._unserved):
            self._on_event("canary gets no sessions here", version=name, hint="start the server with --canary 0.1 to try it")
        self._unserved = name

    async def _withdraw(self, name: str, reason: str) -> None:
        self._failed = self._trial
        self._on_event("canary failed", version=name, error=reason)
        await self._try_to_withdraw(name, reason)

    async def _try_to_withdraw(self, name: str | None, reason: str) -> None:
        """Withdraw the canary; while the registry cannot be changed, the next look tries again.

        Nothing waits for another process that changes it: it may hold up the server's start and its end for ever.
        """
        self._reason, is_first = None, self._reason is None
        try:
            await in_thread(self._registry.withdraw_canary, name, reason=reason, wait=False)
        except MbcalError as problem:  # another server did it, or the registry cannot be written
            if isinstance(problem, OutputError):
                self._reason = reason
            if is_first:
                self._on_event("canary not withdrawn", version=name, error=str(problem))
