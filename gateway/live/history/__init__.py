"""History: rings of the last hour and the last day, by pool, tier, group, tenant and backend."""
