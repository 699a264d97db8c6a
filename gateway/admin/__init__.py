"""Admin port: tenants, tiers, keys, backends and policies, changed while the gateway runs."""
