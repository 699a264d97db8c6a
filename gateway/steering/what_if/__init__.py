"""What-if: the effects of a planned change, from a simulation of the last hour or from the shares after an edit."""
