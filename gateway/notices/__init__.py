"""Notices: budgets that reach a threshold are told to a webhook, once over all gateways that share the state."""
