"""For all tests: what Hypothesis may not take as a failure on a machine that is busy with something else."""

from hypothesis import HealthCheck, settings

settings.register_profile("fairlead", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fairlead")
