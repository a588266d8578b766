"""The batch script of a job: one template, to be read by people who look at `scontrol write batch_script`.

A distributed job, or one for each node, runs one :mod:`infra.launch.slurm_node` on each of its nodes,
under srun; another job runs it in the place of the script.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from infra.launch.base import JobSpec

NODE_MODULE = "infra.launch.slurm_node"

_SCRIPT = """\
#!/bin/bash
# Overland: {key}
{body}
"""

_SRUN = """\
# Slurm sends SIGTERM to the step's own processes too; srun would have them killed at once.
trap '' TERM
srun --input=none --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task={cpus} \\
  --kill-on-bad-exit=1 \\
  {command}
exit $?"""

_SRUN_EACH = """\
# The number of nodes is Slurm's to say; what happens on one of them is its own business.
trap '' TERM
srun --input=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task={cpus} \\
  --kill-on-bad-exit=0 --no-kill --wait=0 \\
  {command}
exit $?"""


def render(spec: JobSpec, *, cpus_per_node: int, options: Sequence[str] = ()) -> str:
    """The script of `spec`; `options` are more of the node program's."""
    command = [sys.executable, "-P", "-m", NODE_MODULE, *options]
    command += [f"--job-dir={spec.job_dir}", f"--key={spec.key}", f"--name={spec.name}"]
    command.append(f"--grace-s={spec.grace_s:g}")
    if spec.time_limit_s is not None:
        command.append(f"--time-limit-s={spec.time_limit_s:g}")
    if spec.distributed:
        command.append(f"--processes-per-node={spec.processes_per_node}")
    text = shlex.join([*command, "--", *spec.argv])
    body = f"exec {text}"
    if spec.distributed:
        body = _SRUN.format(nodes=spec.nodes, cpus=cpus_per_node, command=text)
    elif spec.each_node:
        body = _SRUN_EACH.format(cpus=cpus_per_node, command=text)
    return _SCRIPT.format(key=_one_line(spec.key), body=body)


def _one_line(text: str) -> str:
    return " ".join(text.split())
