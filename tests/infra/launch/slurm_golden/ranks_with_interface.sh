#!/bin/bash
# Overland: /runs/a/attempts/003
# Slurm sends SIGTERM to the step's own processes too; srun would have them killed at once.
trap '' TERM
srun --input=none --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=96 \
  --kill-on-bad-exit=1 \
  /venv/bin/python -P -m infra.launch.slurm_node --interface=ib0 --job-dir=/runs/a/attempts/003/job --key=/runs/a/attempts/003 --name=a-train-003 --grace-s=600 --processes-per-node=8 -- -m tasks.train.job /runs/a --attempt 3
exit $?
