#!/bin/bash
# Overland: /runs/a/evaluations/step_1/jobs/score-1
exec /venv/bin/python -P -m infra.launch.slurm_node '--job-dir=/runs/a/job dir' --key=/runs/a/evaluations/step_1/jobs/score-1 --name=a-score --grace-s=10 -- /usr/bin/env 'two words' '$HOME `id` '"'"'q'"'"'' -- ''
