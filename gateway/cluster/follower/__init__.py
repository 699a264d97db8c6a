"""A member's side of the order: the waiting and running requests of its own clients, reported to the leader."""
