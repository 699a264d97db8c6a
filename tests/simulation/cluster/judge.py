"""Judge: what each judge of a simulated cluster may be told."""

from tests.simulation.recording import Entry


class Judge:
    """What a judge may be told; the defaults ignore it."""

    def watch(self, world):
        self.world = world

    def leads(self, leadership, scheduler):
        """A Scheduler was made, of this leadership."""

    def told(self, leadership, entry: Entry):
        """That Scheduler was told this, or decided it."""

    def kept(self, leadership):
        """A leader takes a checkpoint of this Scheduler."""

    def carried_out(self, node, client, action):
        """A node carries out an action."""

    def sent(self, node, client, backend):
        """A request has reached a backend."""

    def ended(self, node, client):
        """A request has ended."""

    def conclude(self):
        """All faults are over, and everything has had time to end."""
