"""Checks a plan for a site's owner: it must contain the site, state its true privacy cost, and fit the site's policy.

Computing the privacy cost of a plan can take endless time, for example for 10^12 rounds. A plan that arrives over the
network, before its owner has inspected it, is therefore reviewed in a separate process, which ends after a few seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import time

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.settings import refuse_plugins
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.policy import SitePolicy
from fedpriv.sites.resolved_plan import ResolvedPlan

REVIEW_SECONDS = 20
"""Seconds of processor time to compute the privacy cost of a plan that arrives over the network."""
LONGEST_REVIEW = 120
"""Seconds of wall time after which such a review ends, however busy the machine is."""
_ROUNDED = 1 + 1e-6  # a recomputed privacy cost differs by rounding
_COMMAND = "from fedpriv.sites.plan_review import review_from_stdin; review_from_stdin()"
_TOO_LONG = (
    "computing the privacy cost of the plan takes more than {} s of processor time, or too much memory: propose fewer "
    "rounds, local steps or sites; or let the owner, who can wait longer, join with fedpriv site join"
)
_LOG = logging.getLogger(__name__)


def review(text: str, card: SiteDescriptor, policy: SitePolicy) -> tuple[FederationPlan, ResolvedPlan]:
    """Reads and resolves a plan and computes its privacy cost. The time that this takes depends on the plan.

    Args:
        text: The plan.
        card: The site's card.
        policy: The policy of the site's owner.

    Raises:
        ConfigError: If the text is not a plan, does not contain this site, is not allowed between organisations, costs
            more epsilon than its settings state, or violates the policy.
    """
    proposal = FederationPlan.read(text)
    if proposal.cards[proposal.number_of(card.name, card.key)] != card:
        raise ConfigError(
            "plan.sites",
            card.name,
            "the plan contains another card of this site than its present card.json: make the plan with the present "
            "one",
        )
    if proposal.statistics is None:
        policy.check_settings(proposal.config(), proposal.outline)
    else:
        policy.check_statistics(proposal.statistics)
    resolved_plan = ResolvedPlan.of(proposal)
    stated = resolved_plan.plan.privacy.epsilon
    actual = resolved_plan.plan.spent().epsilon
    if stated is not None and actual > stated * _ROUNDED:
        raise ConfigError(
            "plan.privacy.epsilon",
            stated,
            f"the plan's noise costs epsilon={actual:.4g}, more than the plan states: do not accept this plan",
        )
    policy.check(resolved_plan)
    return proposal, resolved_plan


def review_within(text: str, card: SiteDescriptor, policy: SitePolicy, seconds: int = REVIEW_SECONDS) -> None:
    """Reviews an untrusted plan in another process, with a time limit; the plan must not name code.

    Args:
        text: The plan.
        card: The site's card.
        policy: The policy of the site's owner.
        seconds: Limit of processor time for the review, besides two minutes of wall time, which is the only limit on
            systems without the former (Windows).

    Raises:
        FedprivError: See `review`; also if the review took longer or failed. The plan is not accepted.
    """
    document = {
        "text": text,
        "card": card.model_dump(mode="json"),
        "policy": policy.model_dump(mode="json"),
        "seconds": seconds,
    }
    try:
        # -P: a module in the current folder must not replace another one
        done = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND],
            input=json.dumps(document).encode(),
            capture_output=True,
            timeout=LONGEST_REVIEW,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise ConfigError("plan.settings.rounds", "(and others)", _TOO_LONG.format(seconds)) from None
    except OSError as error:
        raise FedprivError(
            f"a proposed plan could not be reviewed, because no process could be started ({error}): propose it again "
            "later"
        ) from error
    if done.returncode < 0:  # ended by a signal: SIGXCPU, or SIGKILL when memory runs out
        raise ConfigError("plan.settings.rounds", "(and others)", _TOO_LONG.format(seconds))
    try:
        refusal = json.loads(done.stdout.splitlines()[-1])["refusal"]
    except (ValueError, KeyError, TypeError, IndexError):
        _LOG.warning("the review of a proposed plan failed: %s", done.stderr.decode(errors="replace")[-2000:])
        raise FedprivError("a proposed plan could not be reviewed; see the site's log") from None
    if refusal is not None:
        raise FedprivError(str(refusal))


def review_from_stdin() -> None:
    """Reviews the plan that `review_within` writes to standard input; writes the reason for rejecting it, or null."""
    document = json.loads(sys.stdin.buffer.read())
    _limit_processor_time(document["seconds"])
    card = SiteDescriptor.model_validate(document["card"])
    policy = SitePolicy.model_validate(document["policy"])
    refusal = None
    try:
        with refuse_plugins():
            review(document["text"], card, policy)
    except FedprivError as error:
        refusal = str(error)
    sys.stdout.write(json.dumps({"refusal": refusal}) + "\n")


def _limit_processor_time(seconds: int) -> None:
    """Ends this process after this many more seconds of processor time, and lowers its priority."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    os.nice(10)
    limit = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
