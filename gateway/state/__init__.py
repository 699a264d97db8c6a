"""State of the gateway: the desired configuration (declared in the file or set by the API), usage, budgets and
checkpoints.
"""
