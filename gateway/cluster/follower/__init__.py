"""A member's side of the order: what its own clients wait for and run, told to the leader."""
