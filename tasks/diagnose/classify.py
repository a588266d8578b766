"""A raised exception -> finding: by a rule for its text, by its type, or by what it led to."""

from __future__ import annotations

from dataclasses import replace

from tasks.diagnose.exception_types import class_of_type
from tasks.diagnose.findings import Finding
from tasks.diagnose.handled import is_sampled
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.raised import Raised, lost_worker
from tasks.diagnose.rules import RuleSet

_BY_CONTEXT = ("dataset_read", "storage_fault")
"""Rules whose words mean a broken model when weights are read."""
_GENERAL = (
    "ConnectionError",
    "KeyError",
    "ValueError",
    "TypeError",
    "RuntimeError",
    "AttributeError",
)
_OF_LIBRARIES = ("shared_library", "driver_library")
"""Rules whose words are also those of programs that look for what they can do without."""
_OF_SHELLS = ("program_missing", "program_denied")
_SITES_SCRIPT = compile_pattern(r"^\S*(?:/etc/|\b(?:prolog|epilog))\S*: line \d+: ")
"""Of the site's own, before and after any job: the job begins whatever they miss."""
_SAYS_THAT_IT_FAILED = compile_pattern(r"(?i)\b(?:error|fatal|critical)\b")
_STORAGE = "storage_fault"
_OF_STORAGE = (_STORAGE, "disk_full")
_ERRNO = compile_pattern(r"\[Errno \d+\]")
_RENDEZVOUS = "rendezvous"
"""torchrun's own link of a chain that begins with its store's general words."""
_SAYS_MORE = ("S3StorageError", "ModelLoadingError", "DatasetLoadingError")

_WEIGHT_FRAMES = compile_pattern(
    r"torch/serialization\.py (?:load|_load|_legacy_load|_open_file\w*|_open_zipfile_reader|__init__|persistent_load)|"
    r"/safetensors/\S+ (?:load\w*|safe_open|get_tensor)|load_state_dict|from_pretrained|"
    r"\bload_(?:checkpoint|weights|model|pretrained\w*)\b|_load_state_dict|torch/distributed/checkpoint/state_dict_loader|"
    r"/orbax/\S+ _?(?:restore|load|deserialize)\w*|/flax/training/checkpoints\.py _?restore\w*|/keras/\S*sav\S+ _?load\w*|"
    r"tensorflow/python/(?:checkpoint|training/saving|saved_model)\S* _?(?:restore|read|load)\w*|dist_checkpointing/\S+ _?load\w*|"
    r"\b_?load_from_checkpoint\b|\brestore_(?:from|checkpoint\w*|weights|params)\b|\b_?load_(?:lora|adapter|peft|sharded|params)\w*"
)
_WEIGHT_SOURCE = compile_pattern(
    r"\b(?:load_state_dict|load_checkpoint\w*|torch\.load|safe_open|load_file|load_weights)\("
)
_NO_WEIGHTS = compile_pattern(r"(?i)sched|scaler|rng|sampler|loader\.|dataset")
"""What else of a run's state is put back in the same way."""
_SAVING_FRAMES = compile_pattern(r" (?:save|_save|save_\w+|_open_zipfile_writer\w*|_legacy_save)$")
_DATA_FRAMES = compile_pattern(
    r"/datasets/(?:load|builder|arrow_dataset|iterable_dataset)\.py|/pyarrow/|indexed_dataset\.py|"
    r"/webdataset/|/streaming/base/|numpy/(?:core|_core)/memmap\.py|/tfrecord|/lmdb|/h5py/|PIL/Image|/nvidia/dali/"
)
_WEB_FRAMES = compile_pattern(
    r"/(?:urllib3|requests|httpx|httpcore|aiohttp|huggingface_hub|wandb)/|/http/client\.py|urllib/request\.py"
)
_WEIGHT_CLASSES = ("OSError", "FileNotFoundError", "KeyError", "RuntimeError", "ValueError")
_DATA_CLASSES = ("OSError", "ValueError", "RuntimeError", "AssertionError")


def finding_in(line: LogLine, rules: RuleSet, order: int) -> Finding | None:
    """What a line says that is no exception's. A library that it does not miss as an error is only mentioned."""
    finding = rules.match(line, order)
    if finding is None or is_sampled(line.body):
        return None
    if finding.method in _OF_SHELLS:
        return replace(finding, in_passing=_SITES_SCRIPT.search(line.body) is not None)
    if finding.method not in _OF_LIBRARIES:
        return finding
    return replace(finding, in_passing=_SAYS_THAT_IT_FAILED.search(line.body) is None)


def finding_of(raised: Raised, rules: RuleSet, order: int) -> Finding | None:
    """What a chain's first exception says; None for one that only reports another's."""
    root = raised.root()
    finding = rules.match(root.line, order)
    if finding is not None:
        general = root.wraps_another and finding.failure_class in _GENERAL
        passing = general or root.in_passing
        finding = replace(finding, in_passing=passing and finding.role == "cause")
        if finding.method in _BY_CONTEXT and loads_weights(root):
            finding = replace(finding, failure_class="ModelLoadingError")
        if finding.failure_class == "NetworkError" and _in_web_client(root):
            finding = _by_type(root, order, "ConnectionError")
    elif not root.wrapper:
        finding = _by_type(root, order, class_of(root))
    finding = _told_by_outer(finding, raised, rules, order)
    return _by_outer_links(finding, raised, rules, order)


def _told_by_outer(
    finding: Finding | None, raised: Raised, rules: RuleSet, order: int
) -> Finding | None:
    """The next link that tells more, of a chain that began with a wait without a word or a write that failed somehow."""
    if finding is None or len(links := raised.links()) == 1:
        return finding
    if links[0].waited_in_vain:
        outer = next((link for link in links[1:] if not link.tells_little), None)
        told = outer and finding_of(replace(outer, context=None), rules, order)
        return told if told and told.failure_class != "RuntimeError" else finding
    if finding.method == _STORAGE and not _ERRNO.search(finding.line.body):
        others = (
            rules.match(link.line, order) for link in links[1:] if _ERRNO.search(link.line.body)
        )
        return next((f for f in others if f is not None and f.method in _OF_STORAGE), finding)
    return finding


def _by_type(root: Raised, order: int, failure_class: str) -> Finding:
    return Finding(
        failure_class,
        "cause",
        "exception",
        root.line,
        order,
        rank=root.line.rank,
        in_passing=root.in_passing,
    )


def _by_outer_links(
    finding: Finding | None, raised: Raised, rules: RuleSet, order: int
) -> Finding | None:
    """A chain that began with something general may say further on what it is about.

    A connection that is refused is the object store's; a missing key is the model's or the data's.
    """
    if finding is None or finding.failure_class not in _GENERAL:
        return finding
    for link in raised.links()[1:]:
        outer = rules.match(link.line, order)
        if outer is None or (outer.failure_class not in _SAYS_MORE and outer.method != _RENDEZVOUS):
            continue
        if outer.failure_class == "S3StorageError" or outer.method == _RENDEZVOUS:
            return outer
        if finding.method == "exception":
            return replace(finding, failure_class=outer.failure_class, method=outer.method)
    return finding


def class_of(raised: Raised) -> str:
    """Failure class of an exception by its type, and by what its traceback was doing.

    A type that is none of the classes takes its nearest base class's; one that is not built in,
    its name's ending (`ConfigKeyError` is a KeyError); any other is a RuntimeError.
    """
    by_type = class_of_type(raised.type_name)
    if by_type == "OSError" and _in_web_client(raised):
        return "ConnectionError"
    if lost_worker(raised):
        return "DataloaderKilled"
    if by_type in _WEIGHT_CLASSES and loads_weights(raised):
        return "ModelLoadingError"
    if by_type in _DATA_CLASSES and _DATA_FRAMES.search("\n".join(raised.frames)):
        return "DatasetLoadingError"
    return by_type


def _in_web_client(raised: Raised) -> bool:
    """Whether its traceback was talking to a service over HTTP."""
    return _WEB_FRAMES.search("\n".join(raised.frames)) is not None


def loads_weights(raised: Raised) -> bool:
    """Whether its traceback was reading a model's weights."""
    saving = any(_SAVING_FRAMES.search(frame) for frame in raised.frames[-6:])
    if saving:
        return False
    if _WEIGHT_FRAMES.search("\n".join(raised.frames)) is not None:
        return True
    source = raised.source
    return _WEIGHT_SOURCE.search(source) is not None and _NO_WEIGHTS.search(source) is None
