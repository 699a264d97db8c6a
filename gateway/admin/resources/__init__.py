"""Resources of the admin API: one file per kind."""
