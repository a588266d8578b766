"""What people, launchers and tools say about a job's hosts and ranks beside its errors."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.continued import ContinuedErrors
from tasks.diagnose.driver_versions import DriverVersions, tells_driver
from tasks.diagnose.dumped_stacks import DumpedStacks, tells_stack
from tasks.diagnose.gpu_strangers import GpuStrangers, tells_of_gpu_process
from tasks.diagnose.heartbeat_ages import HeartbeatAges, tells_heartbeats
from tasks.diagnose.host_memory import HostMemory, tells_of_host_memory
from tasks.diagnose.host_roll_calls import HostRollCalls, is_roll_call
from tasks.diagnose.host_troubles import HostTroubles, tells_trouble
from tasks.diagnose.logs import LogLine
from tasks.diagnose.lone_mentions import LoneMentions, mentioned_host
from tasks.diagnose.missing_things import MissingThings, says_missing
from tasks.diagnose.moved_counters import MovedCounters, tells_counters
from tasks.diagnose.own_stops import OwnStops, says_that_it_stops
from tasks.diagnose.parting_words import PartingWords, says_that_it_leaves
from tasks.diagnose.port_checks import PortChecks, tells_port
from tasks.diagnose.preparation import Preparation, tells_preparation
from tasks.diagnose.ras_reports import RasReports, tells_of_ranks_behind
from tasks.diagnose.ray_tasks import RayTasks, names_ray_task


@dataclass
class Watchers:
    """Feed them lines; each holds what it needs in bounded memory."""

    stacks: DumpedStacks = field(default_factory=DumpedStacks)
    heartbeats: HeartbeatAges = field(default_factory=HeartbeatAges)
    ras: RasReports = field(default_factory=RasReports)
    troubles: HostTroubles = field(default_factory=HostTroubles)
    roll_calls: HostRollCalls = field(default_factory=HostRollCalls)
    counters: MovedCounters = field(default_factory=MovedCounters)
    gpu_strangers: GpuStrangers = field(default_factory=GpuStrangers)
    host_memory: HostMemory = field(default_factory=HostMemory)
    ray_tasks: RayTasks = field(default_factory=RayTasks)
    drivers: DriverVersions = field(default_factory=DriverVersions)
    preparation: Preparation = field(default_factory=Preparation)
    ports: PortChecks = field(default_factory=PortChecks)
    parting: PartingWords = field(default_factory=PartingWords)
    missing: MissingThings = field(default_factory=MissingThings)
    stops: OwnStops = field(default_factory=OwnStops)
    mentions: LoneMentions = field(default_factory=LoneMentions)
    continued: ContinuedErrors = field(default_factory=ContinuedErrors)

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        self.stacks.feed(line, steps)
        self.heartbeats.feed(line, steps)
        self.ras.feed(line, steps)
        self.troubles.feed(line, steps)
        self.roll_calls.feed(line)
        self.counters.feed(line)
        self.gpu_strangers.feed(line, steps)
        self.host_memory.feed(line)
        self.ray_tasks.feed(line)
        self.drivers.feed(line)
        self.preparation.feed(line, steps)
        self.ports.feed(line, steps)
        self.parting.feed(line, steps)
        self.missing.feed(line, steps)
        self.stops.feed(line, steps)
        self.mentions.feed(line.body)
        self.continued.feed(line)

    def pass_by(self, line: LogLine) -> None:
        """Take note of a line that tells none of them anything, but what stands before or after another."""
        self.stacks.note_head(line)
        self.continued.feed(line)

    def merge(self, other: Watchers) -> None:
        """Add what later files tell."""
        self.stacks.merge(other.stacks)
        self.heartbeats.merge(other.heartbeats)
        self.ras.merge(other.ras)
        self.troubles.merge(other.troubles)
        self.roll_calls.merge(other.roll_calls)
        self.counters.merge(other.counters)
        self.gpu_strangers.merge(other.gpu_strangers)
        self.host_memory.merge(other.host_memory)
        self.drivers.merge(other.drivers)
        self.preparation.merge(other.preparation)
        self.ports.merge(other.ports)
        self.parting.merge(other.parting)
        self.missing.merge(other.missing)
        self.stops.merge(other.stops)
        self.mentions.merge(other.mentions)
        self.continued.merge(other.continued)


def may_tell_watchers(line: LogLine) -> bool:
    """Whether the line may be of use to one of them."""
    body = line.body
    return (
        tells_stack(body)
        or tells_heartbeats(body)
        or tells_of_ranks_behind(body)
        or tells_counters(body)
        or tells_of_gpu_process(body)
        or tells_of_host_memory(body)
        or tells_preparation(body)
        or tells_driver(line)
        or tells_port(line)
        or says_that_it_leaves(body)
        or says_missing(body)
        or says_that_it_stops(body)
        or names_ray_task(body)
        or tells_trouble(line)
        or is_roll_call(line)
        or mentioned_host(body) is not None
    )
