"""`python -m infra.slurm`: a local cluster by hand. `make slurm-up` and `make slurm-down` call it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from configs.errors import InputError, OverlandError
from infra.slurm import release
from infra.slurm.cluster import LocalCluster
from infra.slurm.packages import missing_packages
from infra.slurm.settings import ClusterSettings, default_folder, load
from infra.slurm.temporary import write_token


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except OverlandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.slurm", description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster, or what of it does not run")
    up.add_argument("--nodes", type=int, default=4)
    up.add_argument("--port-base", type=int, default=ClusterSettings.port_base)
    up.add_argument("--root", type=Path, help="a chroot made by `release`, whose Slurm is used")
    up.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB")
    other = commands.add_parser("release", help="make a chroot with another Debian's Slurm")
    other.add_argument("root", type=Path)
    other.add_argument("--suite", default="trixie")
    commands.add_parser("down", help="end it, and its jobs")
    commands.add_parser("status", help="what runs; exit code 1 when something does not")
    commands.add_parser("missing", help="the Debian packages that are not installed")
    run = commands.add_parser("exec", help="run a Slurm command against it, like exec squeue")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    for name, words in (("kill-node", "SIGKILL all of a node"), ("start-node", "start it again")):
        commands.add_parser(name, help=words).add_argument("node")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.command == "missing":
        print(" ".join(missing_packages(accounting=True)))
        return 0
    if options.command == "release":
        release.make(options.root.absolute(), options.suite)
        return 0
    if options.command == "up":
        return _up(options)
    cluster = LocalCluster.in_folder(options.folder)
    if options.command == "down":
        cluster.down()
    elif options.command == "status":
        return _print_status(cluster)
    elif options.command == "exec":
        if not options.argv:
            raise InputError("exec needs a command, like: exec squeue")
        command = cluster.command_line(options.argv)
        os.execvpe(command[0], command, cluster.environment)  # noqa: S606
    elif options.command == "kill-node":
        cluster.kill_node(options.node)
    else:
        cluster.start_node(options.node)
    return 0


def _up(options: argparse.Namespace) -> int:
    if missing := missing_packages(accounting=options.accounting, root=options.root):
        raise InputError(f"not installed: {' '.join(missing)}; `make slurm-packages` installs them")
    settings = load(options.folder)
    if settings is None or not any(LocalCluster(settings).status().values()):
        settings = ClusterSettings(
            folder=options.folder,
            port_base=options.port_base,
            nodes=options.nodes,
            accounting=options.accounting,
            root=options.root and options.root.absolute(),
        )
    cluster = LocalCluster(settings)
    start = time.monotonic()
    cluster.up()
    token = write_token(cluster)
    print(
        f"up in {time.monotonic() - start:.1f} s, with {len(settings.all_node_names)} nodes; for a config:"
    )
    print(f"launcher:\n  kind: slurm\n  slurm:\n    url: {cluster.url}\n    token_file: {token}")
    print(f"    network_interface: lo\n    scontrol: [env, SLURM_CONF={settings.conf}, scontrol]")
    return 0


def _print_status(cluster: LocalCluster) -> int:
    status = cluster.status()
    for name, is_up in status.items():
        print(f"{name}: {'up' if is_up else 'down'}")
    return 0 if status and all(status.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
