"""A local cluster: brought up, broken on purpose, brought down.

Every daemon is Debian's own and real; only the machines are made up. What is not installed is said in
:mod:`infra.slurm.packages`; `make slurm-packages` installs it.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from configs.errors import InputError
from infra.slurm import conf
from infra.slurm.accounting import Accounting
from infra.slurm.checks import check
from infra.slurm.daemons import ClusterError, Daemons, end, steps_of
from infra.slurm.files import munge_command, write_files
from infra.slurm.packages import SEARCH_PATH, rest_plugins
from infra.slurm.release import enter
from infra.slurm.settings import ClusterSettings, load

READY_TIMEOUT_S = 60.0
_COMMAND_TIMEOUT_S = 30.0
_REPAIR_PAUSE_S = 0.5
_READY = ("idle", "mix", "alloc")
_DRAINED = ("drain", "drng")
_SERVING = ("idle", "mix", "alloc", "comp")
_REST_USERS = ("slurm", "nobody")
"""slurmrestd refuses to run as root."""


class LocalCluster:
    """One cluster, in one folder."""

    def __init__(self, settings: ClusterSettings, *, leash: bool = False) -> None:
        self.settings = settings
        self._daemons = Daemons(settings.folder, leash=leash, root=settings.root)
        self._accounting = Accounting(settings, self._daemons, self.environment)

    @classmethod
    def in_folder(cls, folder: Path, *, running: bool = False) -> LocalCluster:
        """The cluster that was brought up there; InputError when none was, or when it shall be running
        and nothing of it is."""
        settings = load(folder)
        up = f"`python -m infra.slurm --folder {folder} up`"
        if settings is None:
            raise InputError(f"there is no cluster in {folder}: {up} brings one up")
        cluster = cls(settings)
        if running and not cluster.is_up:
            raise InputError(f"the cluster in {folder} is down: {up} brings it up")
        return cluster

    # --- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything that does not run; returns when jobs can be submitted. A cluster that was down
        is down again when this fails."""
        was_down = not self.is_up
        if was_down:
            self._write_files()
        try:
            self._start_all()
        except BaseException:
            if was_down:
                self.down()
            raise

    def _write_files(self) -> None:
        try:
            check(self.settings)
            write_files(self.settings)
        except OSError as error:
            raise InputError(
                f"the cluster's folder {self.settings.folder} cannot be written: {error.strerror}"
            ) from error

    def _start_all(self) -> None:
        self._daemons.start("munged", munge_command(self.settings), environment=self.environment)
        self._daemons.wait_for("munged", self._munge_answers, timeout_s=READY_TIMEOUT_S)
        if self.settings.accounting:
            self._accounting.up()
        self.start_controller()
        for node in self.settings.all_node_names:
            self.start_node(node)
        self.start_rest()
        self._wait("all nodes to be ready", self._nodes_are_ready)

    def down(self) -> None:
        """End everything, jobs included; the folder stays for people to read."""
        self.stop_rest()
        self.stop_controller()
        for node in self.settings.all_node_names:
            self._kill_node(node)
        self._accounting.down()
        self._daemons.stop("munged")
        for node in self.settings.all_node_names:
            for folder in conf.cgroup_folders(node):
                with suppress(OSError):
                    folder.rmdir()

    def status(self) -> dict[str, bool]:
        """Each of its daemons, and whether it lives."""
        names = ["munged", "slurmctld", "slurmrestd", *self.settings.all_node_names]
        names += ["mariadbd", "slurmdbd"] if self.settings.accounting else []
        return {name: self._daemons.is_up(name) for name in names}

    @property
    def is_up(self) -> bool:
        """Whether anything of it runs."""
        return any(self.status().values())

    def process(self, daemon: str) -> psutil.Process | None:
        """The daemon's process, if it lives."""
        return self._daemons.process(daemon)

    # --- single daemons, for faults ---------------------------------------------------------------

    def start_controller(self) -> None:
        """Start slurmctld; returns when it answers."""
        command = ["slurmctld", "-D", "-f", str(self.settings.conf)]
        self._daemons.start("slurmctld", command, environment=self.environment)
        self._daemons.wait_for("slurmctld", self._controller_answers, timeout_s=READY_TIMEOUT_S)

    def stop_controller(self, *, kill: bool = False) -> None:
        """End slurmctld; jobs go on."""
        self._daemons.stop("slurmctld", kill=kill)

    def start_rest(self) -> None:
        """Start slurmrestd; returns when it answers."""
        environment = self.environment | {"SLURM_JWT": "daemon"}
        user = None
        if os.getuid() == 0:
            user = _rest_user()
        else:
            environment["SLURMRESTD_SECURITY"] = "disable_user_check"
        settings = self.settings
        plugins = rest_plugins(accounting=settings.accounting, root=settings.root)
        command = [
            "slurmrestd",
            "-f",
            str(self.settings.conf),
            "-s",
            plugins,
            "-a",
            "rest_auth/jwt",
        ]
        command.append(f"127.0.0.1:{self.settings.rest_port}")
        self._daemons.start("slurmrestd", command, environment=environment, user=user)
        self._daemons.wait_for("slurmrestd", self._rest_answers, timeout_s=READY_TIMEOUT_S)

    def stop_rest(self) -> None:
        """SIGKILL slurmrestd; jobs and slurmctld go on."""
        self._daemons.stop("slurmrestd", kill=True)

    def start_node(self, node: str) -> None:
        """Start the node's slurmd."""
        self._check_node(node)
        self.settings.in_folder("spool", node).mkdir(parents=True, exist_ok=True)
        command = ["slurmd", "-D", "-f", str(self.settings.conf), "-N", node]
        self._daemons.start(node, command, environment=self.environment)

    def kill_node(self, node: str) -> None:
        """SIGKILL all that runs on the node, as if its machine had lost power."""
        self._check_node(node)
        self._kill_node(node)

    def make_ill(self, node: str) -> None:
        """Have the node fail in the prolog of each job, until it is healed."""
        self.settings.in_folder("ill", node).touch()

    def heal(self, node: str) -> None:
        """Have it run jobs again; it may have to be resumed."""
        self.settings.in_folder("ill", node).unlink(missing_ok=True)

    def repair(self, *, timeout_s: float) -> None:
        """Start what does not run, and have every node serve again, drained ones too."""
        self.start_controller()
        self.start_rest()
        for node in self.settings.all_node_names:
            self.heal(node)
            self.start_node(node)
        deadline = time.monotonic() + timeout_s
        while away := self._nodes_that_do_not_serve():
            if time.monotonic() > deadline:
                raise ClusterError(f"{', '.join(away)} cannot be brought back in {timeout_s:g} s")
            for node in away:
                # Refused while the node has not registered, or when it has come back by itself.
                with suppress(ClusterError):
                    self.command("scontrol", "update", f"nodename={node}", "state=resume")
            time.sleep(_REPAIR_PAUSE_S)

    def _nodes_that_do_not_serve(self) -> list[str]:
        states = self._node_states()
        return sorted(name for name, state in states.items() if state not in _SERVING)

    def _check_node(self, node: str) -> None:
        if node not in (known := self.settings.all_node_names):
            raise InputError(f"there is no node {node!r}; there are {', '.join(known)}")

    def _kill_node(self, node: str) -> None:
        log = self.settings.in_folder("log", f"{node}.log")
        self._daemons.stop(node, kill=True)
        while steps := steps_of(log):
            for process in steps:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            end(steps, timeout_s=READY_TIMEOUT_S)

    # --- asking -----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Of slurmrestd."""
        return f"http://127.0.0.1:{self.settings.rest_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find this cluster."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        return inherited | {"PATH": SEARCH_PATH, "SLURM_CONF": str(self.settings.conf)}

    def command_line(self, arguments: Sequence[str]) -> list[str]:
        """What runs a Slurm command against this cluster, in its environment."""
        root = self.settings.root
        return enter(root, arguments, user=None, leash=False) if root else list(arguments)

    def command(self, *arguments: str) -> str:
        """Output of a Slurm command, like ("scontrol", "ping")."""
        try:
            done = subprocess.run(
                self.command_line(arguments),
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"{' '.join(arguments)} has not ended within {_COMMAND_TIMEOUT_S:g} s"
            ) from error
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            raise ClusterError(f"{' '.join(arguments)} ended with {done.returncode}: {words}")
        return done.stdout

    def token(self, user: str, lifespan_s: int = 86400) -> str:
        """A token for slurmrestd."""
        text = self.command("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}")
        return text.strip().removeprefix("SLURM_JWT=")

    def _nodes_are_ready(self) -> bool:
        with suppress(ClusterError):
            states = self._node_states()
            settled = {name for name, state in states.items() if state in (*_READY, *_DRAINED)}
            return settled == set(self.settings.all_node_names)
        return False

    def _node_states(self) -> dict[str, str]:
        lines = self.command("sinfo", "-h", "-N", "-o", "%N %t").splitlines()
        return {name: state for name, state, *_ in map(str.split, lines)}

    def drained_nodes(self) -> list[str]:
        """Nodes that take no jobs until somebody says that they may again."""
        return sorted(name for name, state in self._node_states().items() if state in _DRAINED)

    def _controller_answers(self) -> bool:
        with suppress(ClusterError):
            return " UP" in self.command("scontrol", "ping")
        return False

    def _rest_answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.settings.rest_port), timeout=1.0).close()
            return True
        return False

    def _munge_answers(self) -> bool:
        with suppress(ClusterError):
            self.command("munge", "-S", str(self.settings.in_folder("run", "munge.sock")), "-n")
            return True
        return False

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                log = self.settings.in_folder("log")
                raise ClusterError(f"waited {READY_TIMEOUT_S:g} s for {what}; see {log}")
            time.sleep(0.1)


def _rest_user() -> str:
    for name in _REST_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ClusterError("slurmrestd needs a user other than root: make one called slurm")
