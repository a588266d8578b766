"""A real Slurm cluster on one machine, for tests and for trying things out: `python -m infra.slurm up`."""
