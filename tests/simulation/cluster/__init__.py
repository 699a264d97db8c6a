"""A cluster of members under a virtual clock: production code but for sockets, with faults by seed, and judges."""
