"""`python -m infra.slurm`: a local cluster by hand. `make slurm-up` and `make slurm-down` call it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError, OverlandError
from configs.files import resolved
from infra.slurm import release
from infra.slurm.checks import check_installed
from infra.slurm.cluster import LocalCluster
from infra.slurm.packages import missing_packages
from infra.slurm.section import launcher_section
from infra.slurm.settings import ClusterSettings, default_folder, load
from infra.slurm.temporary import write_token

_EXIT_INTERRUPTED = 130
_SETTINGS = ("nodes", "port_base", "node_prefix", "root", "accounting")
"""Options of `up`."""


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except OverlandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.slurm", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=default_folder(), help="the cluster's; default: %(default)s"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster, or what of it does not run")
    up.add_argument("--nodes", type=int, help=f"default: {ClusterSettings.nodes}")
    up.add_argument("--port-base", type=int, help=f"default: {ClusterSettings.port_base}")
    up.add_argument("--node-prefix", help="before each node's name; each cluster needs another")
    up.add_argument("--root", type=_path, help="a chroot made by `release`, whose Slurm is used")
    up.add_argument(
        "--accounting", action="store_true", default=None, help="with slurmdbd and MariaDB"
    )
    other = commands.add_parser("release", help="make a chroot with another Debian's Slurm")
    other.add_argument("root", type=_path)
    other.add_argument("--suite", default="trixie")
    commands.add_parser("down", help="end it, and its jobs")
    commands.add_parser("status", help="what runs; exit code 1 when something does not")
    commands.add_parser("missing", help="the Debian packages that are not installed")
    run = commands.add_parser("exec", help="run a Slurm command against it, like exec squeue")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    for name, words in (("kill-node", "SIGKILL all of a node"), ("start-node", "start it again")):
        commands.add_parser(name, help=words).add_argument("node")
    return parser


def _path(text: str) -> Path:
    return Path(text).absolute()


def _run(options: argparse.Namespace) -> int:
    if options.command == "missing":
        print(" ".join(missing_packages(accounting=True)))
        return 0
    if options.command == "release":
        release.make(options.root, options.suite)
        return 0
    folder = resolved(options.folder)
    if options.command == "up":
        return _up(folder, {n: v for n in _SETTINGS if (v := getattr(options, n)) is not None})
    if options.command == "down":
        return _down(LocalCluster.in_folder(folder))
    if options.command == "status":
        return _print_status(LocalCluster.in_folder(folder))
    cluster = LocalCluster.in_folder(folder, running=True)
    if options.command == "exec":
        _exec(cluster, options.argv)
    elif options.command == "kill-node":
        cluster.kill_node(options.node)
    else:
        cluster.start_node(options.node)
    return 0


def _up(folder: Path, wanted: dict[str, Any]) -> int:
    """`wanted`: settings that were given; those of a cluster that runs cannot be changed."""
    settings = load(folder)
    if settings is not None and LocalCluster(settings).is_up:
        _refuse_changes(settings, wanted)
    else:
        settings = ClusterSettings(folder=folder, **wanted)
    check_installed(settings)
    cluster = LocalCluster(settings)
    start = time.monotonic()
    cluster.up()
    section = launcher_section(settings, url=cluster.url, token_file=write_token(cluster))
    took_s, count = time.monotonic() - start, len(settings.all_node_names)
    print(f"up in {took_s:.1f} s, with {count} nodes; for a config:", file=sys.stderr)
    print(section, end="")
    for name in cluster.drained_nodes():
        print(
            f"{name} is drained and takes no jobs: `exec scontrol update nodename={name} state=resume` changes that",
            file=sys.stderr,
        )
    return 0


def _refuse_changes(settings: ClusterSettings, wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if (current := getattr(settings, name)) != value:
            has = f"with {current}" if current else "without"
            raise InputError(
                f"--{name.replace('_', '-')}: the cluster in {settings.folder} is up {has}: end it first with "
                "`down`, or leave the option out"
            )


def _down(cluster: LocalCluster) -> int:
    cluster.down()
    print(f"down; what its daemons said stays in {cluster.settings.in_folder('log')}")
    return 0


def _print_status(cluster: LocalCluster) -> int:
    status = cluster.status()
    for name, is_up in status.items():
        print(f"{name}: {'up' if is_up else 'down'}")
    return 0 if all(status.values()) else 1


def _exec(cluster: LocalCluster, arguments: Sequence[str]) -> None:
    """In the place of this process."""
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        raise InputError("exec needs a command, like: exec squeue")
    line = cluster.command_line(command)
    try:
        os.execvpe(line[0], line, cluster.environment)  # noqa: S606
    except OSError as error:
        raise InputError(f"exec: {command[0]} cannot be run: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
