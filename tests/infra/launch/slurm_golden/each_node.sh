#!/bin/bash
# Overland: /runs/a/attempts/003/nodecheck
# The number of nodes is Slurm's to say; what happens on one of them is its own business.
trap '' TERM
srun --input=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=96 \
  --kill-on-bad-exit=0 --no-kill --wait=0 \
  /venv/bin/python -P -m infra.launch.slurm_node --interface=ib0 --job-dir=/runs/a/attempts/003/nodecheck/job --key=/runs/a/attempts/003/nodecheck --name=a-nodecheck --grace-s=10 --time-limit-s=900 -- /venv/bin/python -m tasks.recover.nodecheck_job /runs/a
exit $?
