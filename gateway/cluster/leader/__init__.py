"""The side of the order that decides: the Schedulers of all pools, fed by what the members tell."""
