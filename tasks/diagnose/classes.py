"""The failure classes: category, what is usually done about each, and advice for a person.

The default action holds for the usual case of a class; a rule may name another one for its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard

from configs.records import ActionKind

Category = Literal["infrastructure", "framework", "script", "scheduler", "anomaly", "none"]


@dataclass(frozen=True)
class FailureClass:
    """One class of failure."""

    name: str
    category: Category
    action: ActionKind
    mitigation: str
    """Advice in at most two sentences."""
    other_mitigation: str = ""
    """Advice where the job restarts on other nodes although the class's own way is the same ones, or the reverse."""
    node_local: bool = False
    """The fault sits in the machine that reports it: its host is the faulty node."""

    def advice(self, action: ActionKind) -> str:
        """What to tell a person, so that it says the same as the action."""
        restarts = {self.action, action} == {"restart_same_nodes", "restart_exclude_node"}
        return self.other_mitigation if restarts and self.other_mitigation else self.mitigation


_FIX_ENVIRONMENT = "Correct the installation on every node, then start the run again."

_TABLE = (
    # infrastructure
    FailureClass(
        "NVLinkError",
        "infrastructure",
        "restart_exclude_node",
        "Take the node out of service and have its NVLink bridges or switches checked. "
        "The run continues from the last checkpoint on other nodes.",
        other_mitigation="Have NVLink's bridges and switches and the fabric manager checked on the nodes that report it.",
        node_local=True,
    ),
    FailureClass(
        "CUDAError",
        "infrastructure",
        "restart_same_nodes",
        "If it comes back on the same GPU, exclude that node; if it moves with the rank, look for an "
        "out-of-range index or a faulty kernel.",
        other_mitigation="The GPU or its node is at fault: keep the node out of the run until it passes a check.",
    ),
    FailureClass(
        "NodeFailure",
        "infrastructure",
        "restart_exclude_node",
        "Look at the node's system log for what ended it. Keep it out of the run until it passes a check.",
        other_mitigation="Look at the node's system log for what ended it. If it is the same node again, exclude it.",
        node_local=True,
    ),
    FailureClass(
        "ECCError",
        "infrastructure",
        "restart_exclude_node",
        "Take the node out of service, reset the GPU, and replace it when rows can no longer be remapped.",
        other_mitigation="Once may be chance. If it comes back on the same GPU, take its node out of service.",
        node_local=True,
    ),
    FailureClass(
        "NetworkError",
        "infrastructure",
        "restart_exclude_node",
        "Check the interface that NCCL or gloo chose (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) and the "
        "links of the named node.",
    ),
    FailureClass(
        "ConnectionError",
        "infrastructure",
        "resubmit_later",
        "Check that the service answers from a compute node; stage what the job downloads beforehand "
        "where nodes have no way out.",
    ),
    FailureClass(
        "S3StorageError",
        "infrastructure",
        "resubmit_later",
        "Check the object store's health and its request limits, then continue.",
    ),
    FailureClass(
        "NCCLTimeoutError",
        "infrastructure",
        "restart_same_nodes",
        "Look at the rank that did not join the collective, not at those that report it. "
        "Raise the process-group timeout only when a rank is known to be slow.",
    ),
    FailureClass(
        "NCCLRemoteError",
        "infrastructure",
        "restart_same_nodes",
        "A peer went away: its own log and node hold the cause.",
    ),
    # framework
    FailureClass(
        "DataloaderKilled",
        "framework",
        "restart_same_nodes",
        "A data worker was killed, mostly for want of host memory: use fewer workers or a smaller "
        "prefetch, and check the size of /dev/shm.",
        node_local=True,
    ),
    FailureClass(
        "AttributeError",
        "framework",
        "fix_by_user",
        "Correct the code or pin the library version that it was written for.",
    ),
    FailureClass(
        "OutOfMemoryError",
        "framework",
        "fix_by_user",
        "Lower the micro-batch or sequence length, recompute more layers, or spread the model wider.",
    ),
    FailureClass(
        "RuntimeError",
        "framework",
        "fix_by_user",
        "Read the quoted error and its traceback, and correct the code or config that it names.",
    ),
    FailureClass(
        "AssertionError",
        "framework",
        "fix_by_user",
        "A check in the code failed: make the config and the checkpoint agree with what it demands.",
    ),
    FailureClass(
        "ValueError",
        "framework",
        "fix_by_user",
        "Correct the value that the message names, in the config or the data.",
    ),
    FailureClass(
        "ZeroDivisionError",
        "framework",
        "fix_by_user",
        "Find the empty batch, zero interval or zero count that the code divides by.",
    ),
    FailureClass(
        "ModelLoadingError",
        "framework",
        "fix_by_user",
        "Check that path, format and shapes of the weights fit the model, or load an older checkpoint.",
    ),
    FailureClass(
        "DatasetLoadingError",
        "framework",
        "fix_by_user",
        "Find and repair or drop the record or shard that cannot be read; then continue.",
    ),
    # script
    FailureClass(
        "FileNotFoundError",
        "script",
        "fix_by_user",
        "Correct the path, or make it visible on every node.",
    ),
    FailureClass(
        "OSError",
        "script",
        "fix_by_user",
        "Free space or quota on the file system, or repair the mount that the message names.",
    ),
    FailureClass(
        "TypeError",
        "script",
        "fix_by_user",
        "A call does not fit its function: correct it or pin the library version.",
    ),
    FailureClass("NameError", "script", "fix_by_user", "Define or import the name in the script."),
    FailureClass(
        "PermissionError",
        "script",
        "fix_by_user",
        "Give the job's user access to the path, or choose another path.",
    ),
    FailureClass("ImportError", "script", "fix_by_user", _FIX_ENVIRONMENT),
    FailureClass(
        "KeyError",
        "script",
        "fix_by_user",
        "The key is missing from config, record or table: correct the name or the data.",
    ),
    FailureClass("SyntaxError", "script", "fix_by_user", "Correct the quoted line of the script."),
    FailureClass(
        "ArgumentError",
        "script",
        "fix_by_user",
        "Correct the command line: the usage text above the error lists what is accepted.",
    ),
    FailureClass(
        "CalledProcessError",
        "script",
        "fix_by_user",
        "A helper program failed: run the quoted command by hand on a node and read its output.",
    ),
    FailureClass(
        "IndexError",
        "script",
        "fix_by_user",
        "Check lengths and class counts of the data against what the code indexes.",
    ),
    # scheduler
    FailureClass(
        "SlurmTimeLimit",
        "scheduler",
        "resubmit_later",
        "Ask for more time or save checkpoints more often: one must fit into the limit.",
    ),
    FailureClass(
        "SlurmPreempted",
        "scheduler",
        "resubmit_later",
        "The scheduler took the nodes for other work; the run continues when it gets nodes again.",
    ),
    FailureClass(
        "SlurmCancelled",
        "scheduler",
        "none",
        "The job was cancelled on purpose. Start the run again to continue it from its last checkpoint.",
    ),
    FailureClass(
        "CgroupOOM",
        "scheduler",
        "fix_by_user",
        "The job used more host memory than it asked for: ask for more, or use fewer data workers.",
        node_local=True,
    ),
    # anomaly
    FailureClass(
        "Hang",
        "anomaly",
        "restart_same_nodes",
        "Look at what the silent rank was doing. If it is the same node again, exclude it.",
        other_mitigation="Look at what the silent rank was doing. Keep its node out of the run until it passes a check.",
        node_local=True,
    ),
    FailureClass(
        "LossSpike",
        "anomaly",
        "rollback_skip_data",
        "Go back to a checkpoint before the spike and skip the batches around it; lower the learning "
        "rate when it returns elsewhere.",
    ),
    # none
    FailureClass("NoFailure", "none", "none", ""),
    FailureClass(
        "Unknown",
        "none",
        "resubmit_later",
        "Nothing in the logs is known: read the quoted lines and the end of each rank's log.",
    ),
)

RESTARTS: tuple[ActionKind, ...] = (
    "restart_same_nodes",
    "restart_exclude_node",
    "rollback_skip_data",
    "resubmit_later",
)
"""Actions after which the job runs again, which must not be where its user has to mend something."""

CLASSES: dict[str, FailureClass] = {entry.name: entry for entry in _TABLE}


def is_class(name: object) -> TypeGuard[str]:
    """Whether it is a failure class's name, whatever a file holds in that place."""
    return isinstance(name, str) and name in CLASSES
