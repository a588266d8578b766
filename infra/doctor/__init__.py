"""Whether a site can run Overland: small checks of what is outside, each with a time limit.

A check looks, says what it found in a sentence, and leaves nothing behind. Which checks there are is in
:mod:`infra.doctor.site`.
"""

from infra.doctor.findings import Check, Finding, Status, examine
from infra.doctor.site import Site, checks_of

__all__ = ["Check", "Finding", "Site", "Status", "checks_of", "examine"]
