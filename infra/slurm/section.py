"""The `launcher` section of a config for a local cluster, as `up` prints it."""

from __future__ import annotations

from pathlib import Path

from infra.slurm.settings import ClusterSettings

_SECTION = """\
launcher:
  kind: slurm
  nodes: {nodes}
  processes_per_node: {processes}
  cpu_threads: 1                  # the nodes share one machine
  slurm:
    url: {url}
    token_file: {token_file}
    partition: main
    low_priority_partition: low   # evaluation: gives way to training
    cpu_partition: cpu            # its export and scoring
    memory_per_node_gib: 4        # Slurm ends a job that takes more; by default it has 0.25
    network_interface: lo
    scontrol: [env, SLURM_CONF={conf}, scontrol]
"""
PROCESSES = 2
"""Training processes, as in configs/quickstart.yaml."""


def launcher_section(settings: ClusterSettings, *, url: str, token_file: Path) -> str:
    """YAML that stands in the place of a config's own section, for two training processes."""
    nodes = min(PROCESSES, settings.nodes)
    return _SECTION.format(
        nodes=nodes,
        processes=PROCESSES // nodes,
        url=url,
        token_file=token_file,
        conf=settings.conf,
    )
