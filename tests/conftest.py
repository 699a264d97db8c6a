"""For all tests: what Hypothesis may not take as a failure on a machine that is busy with something else, and `figure`,
by which a test of one of the 64 checks says what it measured.
"""

from hypothesis import HealthCheck, settings

from tests.calm.figures import figure  # noqa: F401 - a fixture

settings.register_profile("fairlead", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fairlead")
