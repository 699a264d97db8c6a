"""Pool limits: the number of sequences and tokens that may be in flight at all backends of a pool together. A tenant's
share is a part of them.

A backend counts by its speed: its service rate over the mean of its pool. A slot of a backend that is twice as fast is
worth two.
"""

from policies.capacity.backend import BackendCapacity

NOTHING_USABLE = (0.0, 0.0)


class PoolLimits:
    """The most sequences and KV tokens that may be in flight at each live backend, and their sums. Mutable."""

    def __init__(self) -> None:
        self._usable: dict[BackendCapacity, tuple[float, float]] = {}  # as last measured: sequences and KV tokens
        self._sums = NOTHING_USABLE
        self._is_changed = False

    def sums(self) -> tuple[float, float]:
        """The sequences and KV tokens that we may have in flight at all available backends together. Each is weighted
        by the speed of its backend. Tokens are infinite where the size of a KV pool is not known.
        """
        return self._sums

    def measured(self, backend: BackendCapacity) -> None:
        """Take the limits of a backend from its measurement; `add_up` then updates the sums."""
        self._usable[backend] = backend.usable if backend.load.available else NOTHING_USABLE
        self._is_changed = True

    def remove(self, backend: BackendCapacity) -> None:
        """Leave a backend out, because it is no longer live."""
        self._usable.pop(backend, None)
        self._is_changed = True

    def changed(self) -> None:
        """A service rate has changed."""
        self._is_changed = True

    def add_up(self) -> None:
        """Compute the speeds of all backends, and the sums, if anything has changed; the speed is 1 where a rate is not
        known yet. Called before decisions: the many facts between two of them are added up once.
        """
        if not self._is_changed:
            return
        self._is_changed = False
        rates = [rate for each in self._usable if (rate := each.service_rate) is not None]
        mean = sum(rates) / len(rates) if rates else 0.0
        sequences_max = tokens_max = 0.0
        for backend, (sequences, tokens) in self._usable.items():
            rate = backend.service_rate
            backend.speed = rate / mean if rate is not None and mean > 0.0 else 1.0
            sequences_max += sequences * backend.speed
            tokens_max += tokens * backend.speed
        self._sums = sequences_max, tokens_max
