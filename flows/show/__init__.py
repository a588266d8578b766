"""Everything that a person sees of a run on the terminal. Reads the run directory, nothing else."""
