"""What tenants, groups and keys have used, and what their budgets leave: in tokens and in money, by day and month."""
