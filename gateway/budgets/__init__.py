"""Usage of tenants, groups and keys, and what is left of their budgets: in tokens and in money, by day and month."""
