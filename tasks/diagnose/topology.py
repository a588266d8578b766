"""Which host runs which rank, as the logs tell: start-up lines, NCCL's own, torchrun's, Slurm's.

Names of hosts come in every shape, so a name counts as a host's only where a program says that it is
one; later lines are searched for the names that are known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tasks.diagnose.absence import tells_presence
from tasks.diagnose.host_addresses import DOTS_OF_AN_ADDRESS, addresses_in, tells_address
from tasks.diagnose.host_mentions import NO_HOSTS, host_of_service, node_of_system_line
from tasks.diagnose.host_names import MAX_HOSTS, NAME, NAMES, may_name_host, short_name
from tasks.diagnose.host_tables import HostTables, column_of, may_be_table
from tasks.diagnose.logs import MAX_RANKS, LogLine
from tasks.diagnose.node_lists import NodeLists, list_in
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.pods import Pods, may_place_pod

_RANK_HOST = compile_pattern(
    r"(?i)\b(?:global[_ ]?)?rank[ =:]+(?P<rank>\d+)\b.{0,40}?\b(?:host(?:name)?|node)[ =:]+(?P<host>[A-Za-z][\w.-]*)"
)
_PROCESS_HOST = compile_pattern(
    r"(?i)\bproc(?:ess)?(?:[_ ](?:index|id)[ =:]+(?P<rank>\d{1,6})|[ =:]+(?P<of>\d{1,6}) ?(?:/|of) ?\d{1,6})\b"
    r".{0,40}?\b(?:host(?:_?name)?|node(?:_?name)?)[ =:]+(?P<host>[A-Za-z][\w.-]*)"
)
_SAYS_OF_RANK = compile_pattern(
    r"(?i)^\[?(?P<host>[A-Za-z][\w.-]*\d)[\]:]+ rank (?P<rank>\d{1,6})\b"
)
"""A host's word about a rank of its own."""
_HOST_RANK = compile_pattern(
    r"(?i)\b(?:host(?:name)?|node)[ =:]+(?P<host>[A-Za-z][\w.-]*).{0,40}?\b(?:global[_ ]?)?rank[ =:]+(?P<rank>\d+)\b"
)
_LABEL = compile_pattern(
    rf"^(?:\S+ std(?:out|err) [FP] )?(?P<host>{NAME}\d)(?: +\d+: |: \[rank\d+\])"
)
_TASK_LABEL = compile_pattern(r"^(?P<task>\d{1,5}): .{0,40}\[(?:rank|default)\d{1,6}\]")
_MPI_LABEL = compile_pattern(r"^\[\d+,(?:mpirank:)?\d+,(?P<host>[A-Za-z][\w.-]*)\]<std")
_LAUNCHED_PID = compile_pattern(r"\bpid[ =:]+(?P<pid>\d+)")
_NCCL = compile_pattern(rf"(?:^|[ \]])(?P<host>{NAME}):(?P<pid>\d+):\d+ \[\d+\] (?:\S+ )?NCCL ")
_NCCL_ADDRESS = compile_pattern(r"\bUsing \S+?:(?P<address>\d+\.\d+\.\d+\.\d+)<")
_NCCL_RANK = compile_pattern(r"\bcomm 0x[0-9a-f]+ rank (?P<rank>\d+) nranks \d+")
_TASK_HOST = compile_pattern(rf"error: (?P<host>{NAME}): tasks? (?P<tasks>[\d,-]+): (?P<what>.*)")
_TORCHRUN_HOST = compile_pattern(r"^\s*host\s+: (?P<host>\S+)")
_ENDED_WITH_IT = ("Terminated", "Killed")
"""What Slurm says of the tasks that it ended because another had failed."""
_MAX_PLACES = 50_000
"""Ranks, processes and addresses whose host is known, of each."""
_MAX_NAME_CHARS = 253
"""As DNS has it."""
_ADDRESSES_OF_A_HOST = 2
"""What has more is a zone, a group, a network."""


@dataclass
class Topology:
    """Hosts by rank and by address."""

    by_rank: dict[int, str] = field(default_factory=dict)
    by_address: dict[str, str] = field(default_factory=dict)
    by_pid: dict[tuple[str, int], int] = field(default_factory=dict)
    """Ranks by host and process."""
    hosts: set[str] = field(default_factory=set)
    """All names that some program calls a host's."""
    failed_tasks: dict[str, str] = field(default_factory=dict)
    """What Slurm says of a host's tasks."""
    job_hosts: set[str] = field(default_factory=set)
    """Those of the job's own node list."""
    tables: HostTables = field(default_factory=HostTables)
    """What lines of one wording tell, until :meth:`settle`."""
    by_launch: dict[int, str] = field(default_factory=dict)
    """Hosts by rank where nothing tells but how many ranks each of the job's hosts has."""
    numbered: bool = False
    """Ranks are but numbers before lines, as :meth:`settle` finds."""
    pods: Pods = field(default_factory=Pods)
    """Nodes of pods."""
    _shared_addresses: set[str] = field(default_factory=set)
    """Of container bridges and the like: several hosts have them."""
    _host_of_task: dict[int, str] = field(default_factory=dict)
    """As srun reports them when they end."""
    _task_of_rank: dict[int, int] = field(default_factory=dict)
    """As srun and a launcher below it label the same line."""
    _lists: NodeLists = field(default_factory=NodeLists)

    def feed(self, line: LogLine) -> None:
        """Take note of what the line says about hosts."""
        text = line.body
        nccl = _NCCL.search(text) if "NCCL" in text else None
        if nccl is None:
            self.tables.feed(line)
        else:
            host, pid = nccl.groups()
            self._note_nccl(host, int(pid), text, line.rank)
        self.pods.feed(text, line.file)
        if line.rank is not None and text is not line.text:
            self._note_task(line.text, line.rank)
            if line.rank not in self.by_rank:
                self._note_label(line.text, line.rank)
        if "rank" in text or "roc" in text:
            self._note_rank(text)
        if len(self.by_address) < _MAX_PLACES and text.count(".") >= DOTS_OF_AN_ADDRESS:
            for address, host in addresses_in(text):
                self.place_address(address, host)
        if "error: " in text and (match := _TASK_HOST.search(text)):
            self._note_failed_task(match["host"], match["tasks"], match["what"])
        if (told := list_in(text)) is not None:
            self._note_list(*told)
            self.tables.lists.note_job(told[0], certain="NODELIST" in text)
        if text.lstrip().startswith("host") and (match := _TORCHRUN_HOST.match(text)):
            self._add_host(match["host"])

    def _note_failed_task(self, host: str, tasks: str, what: str) -> None:
        if self._add_host(host):
            self.failed_tasks.setdefault(host, what)
            for task in self._lists.tasks(host, tasks):
                if len(self._host_of_task) < _MAX_PLACES:
                    self._host_of_task.setdefault(task, host)

    def _note_task(self, text: str, rank: int) -> None:
        """Of srun's label before another launcher's, which tells the rank."""
        match = _TASK_LABEL.match(text)
        if match is None or int(match["task"]) == rank or rank in self._task_of_rank:
            return
        if len(self._task_of_rank) < _MAX_PLACES:
            self._task_of_rank[rank] = int(match["task"])

    def _note_label(self, text: str, rank: int) -> None:
        """Of srun's label with the host before it, or mpirun's."""
        match = _LABEL.search(text) or _MPI_LABEL.match(text)
        if match is not None and match["host"][0].isalpha():
            self._place_rank(rank, match["host"])

    def note_failed_rank(self, rank: int, host: str) -> None:
        """A launcher's own report says where a rank was: that counts more than what other lines say."""
        if self._add_host(host) and rank < MAX_RANKS:
            self.by_rank[rank] = host

    def _note_rank(self, text: str) -> None:
        match = _RANK_HOST.search(text) or _HOST_RANK.search(text) if "rank" in text else None
        if match is not None:
            pid = _LAUNCHED_PID.search(text)
            self._place_rank(int(match["rank"]), match["host"], int(pid["pid"]) if pid else None)
        elif (said := _SAYS_OF_RANK.match(text)) is not None and may_name_host(said["host"]):
            self._place_rank(int(said["rank"]), said["host"])
        elif "roc" in text and (match := _PROCESS_HOST.search(text)) is not None:
            self._place_rank(int(match["rank"] or match["of"]), match["host"])

    def _note_nccl(self, host: str, pid: int, text: str, rank: int | None) -> None:
        self._add_host(host)
        if "Bootstrap" in text and (using := _NCCL_ADDRESS.search(text)):
            self.place_address(using["address"], host)
        if found := _NCCL_RANK.search(text):
            rank = int(found["rank"])
        if rank is not None:
            self._place_rank(rank, host, pid)

    def _place_rank(self, rank: int, host: str, pid: int | None = None) -> None:
        """Note a rank's host, and its process there; the first word on a rank counts."""
        if not self._add_host(host) or rank >= MAX_RANKS:
            return
        if len(self.by_rank) < _MAX_PLACES:
            self.by_rank.setdefault(rank, host)
        if pid is not None and (len(self.by_pid) < _MAX_PLACES or (host, pid) in self.by_pid):
            self.by_pid[(host, pid)] = rank

    def place_address(self, address: str, host: str) -> None:
        """Note a host of an address: one that several have is of none."""
        fits = len(self.by_address) < _MAX_PLACES or address in self.by_address
        if fits and self._add_host(host) and self.by_address.setdefault(address, host) != host:
            self._shared_addresses.add(address)

    def _note_list(self, text: str, rest: str) -> None:
        """Of a list as Slurm writes it, or of names with blanks, addresses or numbers between them."""
        for name in self._lists.names(text, rest):
            if len(self.job_hosts) < MAX_HOSTS and self._add_host(name):
                self.job_hosts.add(name)

    def _add_host(self, name: str) -> bool:
        """Note a host's name; whether more may be noted of it: there is room, and it can be a name."""
        if name in self.hosts or name in NO_HOSTS:
            return True
        fits = len(self.hosts) < MAX_HOSTS and len(name) <= _MAX_NAME_CHARS
        if fits:
            self.hosts.add(name)
        return fits

    def merge(self, other: Topology) -> None:
        """Take over what another has noted until :meth:`settle`; the first word on anything counts."""
        self.by_rank = {**other.by_rank, **self.by_rank}
        self.by_pid.update(other.by_pid)
        self.hosts |= other.hosts
        self.job_hosts |= other.job_hosts
        self.failed_tasks = {**other.failed_tasks, **self.failed_tasks}
        for address, host in other.by_address.items():
            self.place_address(address, host)
        self.tables.merge(other.tables)
        self.pods.nodes = {**other.pods.nodes, **self.pods.nodes}
        self._shared_addresses |= other._shared_addresses
        self._host_of_task = {**other._host_of_task, **self._host_of_task}
        self._task_of_rank = {**other._task_of_rank, **self._task_of_rank}

    def settle(self) -> None:
        """Take over what tables tell: all lines are in. What a line has said outright counts more."""
        several = Counter(self.by_address.values())
        zones = {name for name, addresses in several.items() if addresses > _ADDRESSES_OF_A_HOST}
        self.hosts -= zones
        outright = {
            address: host
            for address, host in self.by_address.items()
            if host not in zones and address not in self._shared_addresses
        }
        self.by_address = {**self.tables.by_address(), **outright}
        told = self.tables.by_rank(self.hosts | set(self.by_address.values()))
        columns = self.tables.by_column(self.hosts)
        self.numbered = bool(columns) and not told
        told = told or columns
        of_tasks = {r: told[task] for r, task in self._task_of_rank.items() if task in told}
        one_each = len(set(told.values())) == len(told)
        # Where srun starts a task for each rank, there are several on a host.
        tasks = self._host_of_task
        of_srun = tasks if len(set(tasks.values())) < len(tasks) else {}
        self._note_containers()
        self.by_launch = self.tables.lists.by_launch()
        self.by_rank = {**of_srun, **told, **(of_tasks if one_each else {}), **self.by_rank}
        self.hosts |= {*self.by_address.values(), *self.tables.labelled()}

    def _note_containers(self) -> None:
        """What calls itself otherwise than mpirun's map of its rank is a container there."""
        mapped = self.tables.lists.mapped
        nodes = set(mapped.values())
        for rank, host in self.by_rank.items():
            if rank in mapped and host not in nodes and short_name(host) not in nodes:
                self.pods.nodes.setdefault(host, mapped[rank])

    def host(self, node: str | None, rank: int | None) -> str | None:
        """Host of a name or address, else of a rank."""
        if node is not None:
            name = self.by_address.get(node) or self._without_service(node)
            return self.pods.node_of(name) or self.pods.node_of(node) or name
        host = None if rank is None else self.by_rank.get(rank) or self.by_launch.get(rank)
        return None if host is None else self.pods.node_of(host) or host

    def rank_before(self, text: str) -> int | None:
        """The rank whose number alone stands before a line."""
        return column_of(text) if self.numbered else None

    def _without_service(self, name: str) -> str:
        """Of what is called after a host, like its console or a daemon on it, the host: console.gpu-7."""
        short, _, rest = name.partition(".")
        if name not in self.hosts and rest in self.hosts:
            return rest
        if rest and short in self.job_hosts:
            return short
        host, certain = host_of_service(name)
        return host if certain or (host in self.hosts and name not in self.job_hosts) else name

    def named_in(self, text: str) -> str | None:
        """The host that the line is about: as the system's log names it, else one that is known."""
        node = node_of_system_line(text, self.hosts)
        return self._without_service(node) if node else self._known_in(text)

    def names_several(self, text: str) -> bool:
        """Whether the line names more than one host that is known."""
        known = {t for t in NAMES.findall(text) if t in self.hosts or t in self.by_address}
        return len({self.by_address.get(name, name) for name in known}) > 1

    def writer_of(self, line: LogLine) -> str | None:
        """The host that a launcher has put before the line."""
        return self._known_in(line.text.removesuffix(line.body))

    def _known_in(self, text: str) -> str | None:
        known = (t for t in NAMES.findall(text) if t in self.hosts or t in self.by_address)
        return next((self.by_address.get(name, name) for name in known), None)

    def failed_task_host(self, wanted: str = "") -> str | None:
        """The only host whose tasks failed, or failed in that way."""
        failed = {h: w for h, w in self.failed_tasks.items() if not w.startswith(_ENDED_WITH_IT)}
        found = {h for h, what in (failed or self.failed_tasks).items() if wanted in what}
        return found.pop() if len(found) == 1 else None

    def only_host(self) -> str | None:
        """The job's host, when it has one alone."""
        hosts = self.job_hosts or self.hosts or set(self.by_rank.values())
        short = {short_name(host) for host in hosts}
        return min(hosts) if len(short) == 1 else None

    def rank_of(self, host: str | None, pid: int) -> int | None:
        """Rank of a process, by its host or, where no other host has such a process, without."""
        if host is not None and (host, pid) in self.by_pid:
            return self.by_pid[(host, pid)]
        found = {rank for (_, known), rank in self.by_pid.items() if known == pid}
        return found.pop() if len(found) == 1 else None


def may_tell_hosts(body: str) -> bool:
    """Whether the line may say which host is where."""
    return (
        tells_presence(body)
        or may_place_pod(body)
        or any(
            p.search(body)
            for p in (_RANK_HOST, _HOST_RANK, _SAYS_OF_RANK, _PROCESS_HOST, _TASK_HOST)
        )
        or list_in(body) is not None
        or tells_address(body)
        or (_says_nccl(body) if "NCCL" in body and _NCCL.search(body) else may_be_table(body))
    )


def _says_nccl(body: str) -> bool:
    """Whether a line of NCCL's says more than its writer's host and process."""
    return _NCCL_RANK.search(body) is not None or "Bootstrap" in body
