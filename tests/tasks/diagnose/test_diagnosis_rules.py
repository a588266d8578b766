"""rules.yaml: loads, refuses nonsense, matches what it is for, in linear time."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from configs.errors import ConfigError
from configs.records import ActionKind
from tasks import diagnose
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.logs import LogLine, split_prefix
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.rules import default_rules, parse_rules


def _line(text: str) -> LogLine:
    rank, body = split_prefix(text)
    return LogLine("x.log", 1, rank, text, body)


@pytest.mark.parametrize(
    ("text", "rule", "failure_class"),
    [
        (
            "node7 kernel: [12.5] NVRM: Xid (PCI:0000:3b:00): 74, pid=1, NVLink: fatal error",
            "xid_nvlink",
            "NVLinkError",
        ),
        (
            'exporter DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="6",Hostname="n3",modelName="A100"} 1',
            "xid_ecc",
            "ECCError",
        ),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "gpu_needs_reset",
            "CUDAError",
        ),
        (
            "Normal  Preempted  workload/a-1  Preempted to accommodate a workload (UID: 9f7e)",
            "slurm_preempted",
            "SlurmPreempted",
        ),
        ("RuntimeError: gradients have NaN values", "loss_not_finite", "LossSpike"),
        ("srun: error: iv01: tasks 0-3: Illegal instruction", "illegal_instruction", "Unknown"),
        ("srun: error: iv01: tasks 0-3: Segmentation fault", "process_crashed", "RuntimeError"),
        (
            'Failed to pull image "r/lm:rc9": rpc error: code = NotFound desc = r/lm:rc9: not found',
            "image_missing",
            "Unknown",
        ),
        (
            'Failed to pull image "r/lm:rc9": dial tcp: lookup r: no such host',
            "service_unreachable",
            "ConnectionError",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account",
            "submission_refused",
            "Unknown",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "command_line",
            "ArgumentError",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=2, Contained ECC error", "xid_ecc", "ECCError"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "xid_ecc", "ECCError"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", "xid_gpu_lost", "NodeFailure"),
        ("srun: error: Node failure on n42", "slurm_node_fail", "NodeFailure"),
        (
            "[2025-01-01T00:00:00] error: *** JOB 1 ON n1 CANCELLED AT 2025-01-01T00:00:00 "
            "DUE TO TIME LIMIT ***",
            "slurm_time_limit",
            "SlurmTimeLimit",
        ),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 "
            "DUE TO PREEMPTION ***",
            "slurm_preempted",
            "SlurmPreempted",
        ),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***",
            "slurm_cancelled",
            "SlurmCancelled",
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.",
            "slurm_oom",
            "CgroupOOM",
        ),
        (
            "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "gpu_out_of_memory",
            "OutOfMemoryError",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda_error", "CUDAError"),
        (
            "OSError: [Errno 28] No space left on device: '/x'",
            "disk_full",
            "OSError",
        ),
        (
            "train.py: error: argument --lr: invalid float value: 'a'",
            "command_line",
            "ArgumentError",
        ),
        (
            "[rank0]: RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            "[127.0.0.1]:17610.",
            "peer_connection_lost",
            "NCCLRemoteError",
        ),
        (
            "RuntimeError: Error(s) in loading state_dict for GPT:",
            "model_weights",
            "ModelLoadingError",
        ),
    ],
)
def test_rules_take_the_lines_they_are_for(text: str, rule: str, failure_class: str) -> None:
    finding = default_rules().match(_line(text), 1)
    assert finding is not None
    assert (finding.method, finding.failure_class) == (rule, failure_class)


@pytest.mark.parametrize(
    "text",
    [
        "iteration 12/ 800 | lm loss: 2.1 | loss scale: 1.0 | number of skipped iterations: 0 |",
        "step 130 loss 5.1 grad_norm 0.3 tokens/s 12000",
        "NCCL INFO comm 0x1 rank 1 nranks 32 - Destroy COMPLETE",
        "time_limit: 12:00:00  memory: 500G  node: n12",
        "RuntimeError: injected fault",
    ],
)
def test_ordinary_lines_match_no_rule(text: str) -> None:
    assert default_rules().match(_line(text), 1) is None


def test_captures_name_node_and_rank() -> None:
    finding = default_rules().match(_line("[rank4]: srun: error: Node failure on gpu-07"), 1)
    assert finding is not None
    assert (finding.node, finding.rank) == ("gpu-07", 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: a, class: Nope, role: cause, patterns: [x]}", "no failure class"),
        ("- {id: a, class: OSError, role: maybe, patterns: [x]}", "role"),
        ("- {id: a, class: OSError, role: cause, patterns: []}", "patterns"),
        ("- {id: a, class: OSError, role: cause, patterns: ['(?=x)']}", "RE2"),
        ("- {id: a, class: OSError, role: cause, patterns: [x], extra: 1}", "extra"),
        ("- {id: a, class: OSError, role: cause, patterns: [x], action: pray}", "action"),
        (
            "- {id: a, class: OSError, role: cause, patterns: [x]}\n"
            "- {id: a, class: KeyError, role: cause, patterns: [y]}",
            "twice: a",
        ),
        ("{broken", "malformed"),
    ],
)
def test_a_wrong_rules_file_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + said):
        parse_rules(text, "mine.yaml")


def test_matching_is_linear_in_hostile_text() -> None:
    exponential = compile_pattern(r"^(a+)+$")
    text = "a" * 4000 + "!"
    assert exponential.search(text) is None  # years, were it not linear
    rules = default_rules()
    for hostile in (
        "Xid (PCI:" * 400,
        "kernel: " * 500,
        "DataLoader worker (pid " * 150,
        "." * 4000,
    ):
        assert rules.match(_line(hostile), 1) is None, hostile[:20]


def test_every_class_has_a_valid_action_and_short_advice() -> None:
    assert len(CLASSES) == 37
    for name, entry in CLASSES.items():
        assert entry.action in get_args(ActionKind), name
        assert entry.mitigation.count(". ") <= 1, name


def test_a_counter_of_no_double_bit_error_is_no_fault() -> None:
    line = _line('exporter DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="6",Hostname="n3"} 0')
    assert default_rules().match(line, 0) is None


ASK_FOR_RULES = (
    "cancels",
    "causes",
    "classify",
    "findings",
    "place",
    "restarts",
    "survival",
    "whose_fault",
)
"""Modules that treat the findings of some rules in their own way, by the rules' ids."""


@pytest.mark.parametrize("module", ASK_FOR_RULES)
def test_rules_that_modules_name_are_there(module: str) -> None:
    """A rule that gets another id would lose its judge in silence."""
    source = Path(diagnose.__path__[0]) / f"{module}.py"
    assigned = [n.value for n in ast.parse(source.read_text()).body if isinstance(n, ast.Assign)]
    texts = (c.value for value in assigned for c in ast.walk(value) if isinstance(c, ast.Constant))
    named = {text for text in texts if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", str(text))}
    assert named
    assert named <= {rule.id for rule in default_rules().rules}
