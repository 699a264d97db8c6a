"""The deciding side of the order: the Schedulers of all pools, which get their facts from the members' reports."""
