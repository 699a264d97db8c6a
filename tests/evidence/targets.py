"""All targets of `make tables`, by the name that --only takes."""

from tests.evidence import dlpm_tables, predictors, slo_scenes, slo_tables, vtc_figures, vtc_tables
from tests.evidence.experiment import Target

TARGETS: dict[str, Target] = {
    **vtc_tables.TARGETS,
    **vtc_figures.TARGETS,
    **dlpm_tables.TARGETS,
    **predictors.TARGETS,
    **slo_tables.TARGETS,
    **slo_scenes.TARGETS,
}
