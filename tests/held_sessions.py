"""Sessions that are held whatever their engines have room for."""

from policies.sessions.engage import Engagement


class AlwaysEngaged(Engagement):
    """Hold from the first instant, and never stop. A subclass, because methods of compiled objects are read-only."""

    def __init__(self):
        super().__init__()
        self.begin(0.0)

    def update(self, sets, *, is_needed, now):
        pass
